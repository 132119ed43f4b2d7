"""Inference: sentences run through a biLM.

batches.py     sentences -> batches by length
word_cache.py  a cache of context-free word vectors
runner.py      sentences -> batches with every layer's vectors
views.py       all layers of a sentence -> the vectors that `layers=` names
vectors.py     arithmetic on vectors
scores.py      log-probabilities, perplexity, substitutes
grouping.py    vectors -> groups
senses.py      occurrences of a word -> its senses
"""
