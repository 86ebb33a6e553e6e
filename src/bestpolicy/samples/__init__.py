"""What is asked of a simulator, `Pulls` of pairs or `Episodes` of a policy, and what it answers, a `Tally`.

Where states cannot be listed it is asked for `Draws` and answers with what is `Drawn`: the same verbs.
"""

from bestpolicy.samples.cells import are_cells as are_cells
from bestpolicy.samples.draws import Bets, Drawn, Draws
from bestpolicy.samples.episodes import Episodes
from bestpolicy.samples.episodes import require_episodes as require_episodes
from bestpolicy.samples.pulls import Pulls
from bestpolicy.samples.pulls import answer_ends as answer_ends
from bestpolicy.samples.pulls import require_pulls as require_pulls
from bestpolicy.samples.tally import Followed, Tally

Wanted = Pulls | Episodes | Draws  # what a request asks for

__all__ = ["Bets", "Drawn", "Draws", "Episodes", "Followed", "Pulls", "Tally"]
