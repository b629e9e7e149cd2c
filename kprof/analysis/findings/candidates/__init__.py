"""Candidates: what could be as it usually is, and how much shorter calls would be with that.

candidate    what a candidate is, and the comparable elements that it is found in
excess       which groups of comparable cells take longer than the others
slow_places  places that take longer, and what to take off their elements
outliers     single elements that take much longer, all over the run
grouping     all that one place has too much of is one candidate; so are places that are alike
crossings    links between hosts, beside those within
neighbors    ranks that exchange data with as many others as their likes
grown        places that take longer than in another recording
"""
