"""A result that others can check: save a certificate, verify it, change a number, verify it again."""

import tempfile
from pathlib import Path

import bestpolicy as bp
from bestpolicy.verification import verify

mdp = bp.instances.load("riverswim")
result = bp.identify(bp.ExactSimulator(mdp), epsilon=0.5, delta=0.1, algorithm="tight", seed=1)

with tempfile.TemporaryDirectory() as folder:
    certificate = Path(folder) / "certificate.json"
    result.save(certificate)
    print(verify(certificate))  # from the file alone, with code of its own
    print(verify(certificate, mdp))  # here the truth is known: also the policy's true loss

    claim = f'"epsilon": {result.epsilon!r}'
    certificate.write_text(certificate.read_text().replace(claim, '"epsilon": 0.01'))
    print(verify(certificate))
