"""What breaks when heads lose frequencies, or are silenced?"""
