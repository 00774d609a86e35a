"""What a mixture with a component for noise adds to one without: where it starts, and the attributes of the noise."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.noise import LEAST_SHARE, start_with_noise, with_noise
from globular.algorithms.steps import Step
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.fitted import checked_floats
from globular.estimators.inputs import Input
from globular.estimators.mixture_starts import GivenStart, starting_mixture
from globular.estimators.parameters import Constraints
from globular.model.gaussian import GaussianParameters
from globular.model.noise import Noise
from globular.model.statistics import F64
from globular.seam.passes import Extremes
from globular.seam.shard import Shard


class NoisyMixture(ConditionalMixture):
    """Base of the mixtures that may have noise."""

    _parameter_constraints: ClassVar[Constraints] = {**ConditionalMixture._parameter_constraints, "noise": ["boolean"]}
    noise: bool
    init_params: str
    noise_weight_: float
    noise_bounds_: F64

    def _start_with_noise(
        self, data: Input, given: GivenStart, options: EMOptions, random: np.random.RandomState
    ) -> Generator[Step[Any], None, GaussianParameters]:
        limits = covariance_limits(data.shard, options)
        noise = Noise.around(data.shard.run(Extremes()), limits, LEAST_SHARE)
        within = replace(options, limits=limits)

        def begin(shard: Shard) -> Generator[Step[Any], None, GaussianParameters]:
            return starting_mixture(shard, self.n_components, self.init_params, given, within, random)

        if given.continues and "noise_weight_" in vars(self):
            return with_noise((yield from begin(data.shard)), noise.of_weight(float(self.noise_weight_)))
        if given.means is not None or self.init_params == "random":
            return with_noise((yield from begin(data.shard)), noise)
        rng = np.random.default_rng(random.randint(2**31, size=4))
        size = self.n_components, self.covariance_type
        return (yield from start_with_noise(data.shard, noise, *size, begin, rng))

    def _publish_mixture(self, mixture: GaussianParameters, dtype: np.dtype[Any]) -> None:
        super()._publish_mixture(mixture, dtype)
        for name in ("noise_weight_", "noise_bounds_"):
            self.__dict__.pop(name, None)  # those of the last fit
        if mixture.noise is not None:
            self.noise_weight_ = mixture.noise.weight
            self.noise_bounds_ = np.stack([mixture.noise.low, mixture.noise.high])

    @property
    def _noise(self) -> Noise | None:
        if "noise_weight_" not in vars(self):
            return None
        bounds = checked_floats(self.noise_bounds_, "noise_bounds_", (2, self.n_features_in_))
        if not (bounds[0] < bounds[1]).all():
            raise ValueError("noise_bounds_ must have smaller values in its first row; fit again")
        if not 0.0 <= self.noise_weight_ <= 1.0:
            raise ValueError(f"noise_weight_ must be between 0 and 1, got {self.noise_weight_!r}; fit again")
        return Noise(float(self.noise_weight_), *bounds)
