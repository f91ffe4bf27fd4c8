"""Hidden Markov models of phones: lexicon, n-gram, Gaussian mixtures, graph and search.

They make the frame labels of a hybrid acoustic model, and turn its posteriors into
words.
"""
