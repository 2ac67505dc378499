"""OpenAI's evolution strategy learns CartPole-v1 with worker processes that come and go."""
