"""Does a head attend by position or by symbol?"""
