// SPDX-License-Identifier: Apache-2.0
// How many tokens a step can take before more of them stop replacing steps.
//
// Kaplan et al. (Scaling Laws for Neural Language Models, arXiv:2001.08361) fit the loss that N
// parameters reach on D tokens, and the critical batch by that loss (equations 1.5 and 1.4):
//
//   L = ((N_c / N)^(a_N / a_D) + D_c / D)^a_D      B_crit = B* / L^(1 / a_B)
//
// A run with batch B needs about 1 + B / B_crit times the tokens of one with a tiny batch
// (McCandlish et al., arXiv:1812.06162). The fit is rough, from small models: it warns, it does not
// decide.
#pragma once

#include "profiles/operations.h"
#include "sim/core/model.h"

namespace shardwright::tuner {

/// Nats per token after training on `tokens`.
double expected_loss(const Model& model, double tokens, const profiles::Operations& constants);

/// Tokens of a step at that loss.
double critical_tokens(const Model& model, double tokens, const profiles::Operations& constants);

}  // namespace shardwright::tuner
