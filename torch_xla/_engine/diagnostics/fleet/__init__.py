"""Numbers of a running job, for whoever watches many: where its time went, and exporters to the tools of the field."""
