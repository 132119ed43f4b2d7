"""The endpoints, one module for each group: those of text-embeddings-inference, OpenAI's /v1/embeddings, and our own.

vectors         /embed, /embed_all, /layers, /similarity, /v1/embeddings, /tokenize
language_model  /log_probs, /substitutes
tasks           /tasks/{name}, /neighbours
status          /info, /health, /ready, /metrics
page            /, /docs
"""
