"""One run and its file: what is asked, told, decided and found.

`study` owns the loop's state, `settings` are what it was asked, `checked` sees that they make sense, `queries` cuts
requests into what workers answer, `result` says what came out, `forecast` how long it will take, `patience` keeps
deadlines; `store`, `journal`, `past` and `database` are the file that it survives in, `again` goes on with it,
`migration` reads older ones, `listing` says what is in one; `linearity` tests the features meanwhile.
"""

from bestpolicy.study.feature_result import FeatureResult
from bestpolicy.study.forecast import Outlook, Pace
from bestpolicy.study.journal import Record
from bestpolicy.study.linearity import Linearity
from bestpolicy.study.listing import studies
from bestpolicy.study.queries import Query
from bestpolicy.study.result import Outcome, Result
from bestpolicy.study.settings import Settings
from bestpolicy.study.store import rescue
from bestpolicy.study.study import Study

__all__ = [
    "FeatureResult",
    "Linearity",
    "Outcome",
    "Outlook",
    "Pace",
    "Query",
    "Record",
    "Result",
    "Settings",
    "Study",
    "rescue",
    "studies",
]
