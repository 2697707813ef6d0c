"""What the packages for LangChain and LlamaIndex both need, written once."""
