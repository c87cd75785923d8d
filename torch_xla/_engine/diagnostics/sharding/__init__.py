"""How tensors are divided among devices, as pictures; and what programs send because of it."""
