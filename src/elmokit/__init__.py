"""elmokit: contextual word vectors from bidirectional language models."""
