"""What the classes for LangChain and LlamaIndex share, in neither framework's terms."""
