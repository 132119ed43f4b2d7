"""Sentences run through a biLM: batches, the cache of word vectors, scores."""
