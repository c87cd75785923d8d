"""Sight: answers to why it is slow, wrong or full. Looks at what the rooms above tell; off, it costs nothing.

In: events, graphs and programs. Out: reports, profiles, files that replay a step.
"""
