"""What did the skill do?"""
