"""What a reward promises, and the search for a request on which it breaks a promise; `testing` is the public face.

`promises` names them, `properties` and `company` have the check of each, `trials` the cases they are tried on, `fixed`
those that are tried each time. `searching` finds the smallest one, `soundness` puts this together for rewards and
`strictness` for scorers of text. `strategies` and `hostile` draw requests, answers and texts. Needs hypothesis; nothing
else in the library imports this package.
"""
