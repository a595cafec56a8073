"""Which task can one head learn at which frequency?"""
