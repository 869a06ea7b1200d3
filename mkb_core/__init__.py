"""MetaKernelBench: does what an agent writes down about a kernel transfer to another DSL?"""
