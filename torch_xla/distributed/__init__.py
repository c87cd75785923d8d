"""Work that is divided: loading in the background, and, in later versions, several processes and devices."""
