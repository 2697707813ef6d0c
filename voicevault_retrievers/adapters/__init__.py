"""What the classes for LangChain and for LlamaIndex share; neither framework is imported."""
