"""Programs in stages: where a graph is cut, which parts are equal, and the executable of each part."""
