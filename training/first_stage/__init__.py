"""How first stages are trained and how the lists of training users are made: by a model that never saw them.

`sasrec.fit` trains one SASRec; `settings` say who sees whom; `building.build` makes the lists of every split.
"""
