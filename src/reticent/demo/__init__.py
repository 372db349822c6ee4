"""The synthetic clinic letters and the demonstration: a corpus, worlds, three writers, and what each gives away."""
