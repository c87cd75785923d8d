"""Numbers of a running job, for tools that watch many jobs: where its time went, exporters, its last collectives."""
