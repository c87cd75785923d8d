"""Diagnostics: why it is slow, wrong or full. They look at what the rooms above tell; off, they cost nothing.

In: events, graphs and programs. Out: reports, profiles, files that replay a step. A room for each question.
"""
