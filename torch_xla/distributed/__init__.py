"""Work that is divided: loading in the background, and, in later versions, over several processes and devices."""
