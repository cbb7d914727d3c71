// SPDX-License-Identifier: Apache-2.0
// How many tokens a step can take before more of them stop replacing steps.
//
// A run with batch B needs about 1 + B / B_crit times the tokens of one with a tiny batch
// (McCandlish et al., arXiv:1812.06162). Kaplan et al. (arXiv:2001.08361) gave B_crit by the loss
// that N parameters reach on D tokens (equations 1.5 and 1.4):
//
//   L = ((N_c / N)^(a_N / a_D) + D_c / D)^a_D      B_crit = B* / L^(1 / a_B)
//
// Later measurements find that it grows with the tokens alone, B_crit = c D^e (Zhang et al.,
// arXiv:2410.21676; Bergsma et al., arXiv:2505.13738). Which law ships is decided by the batches of
// published trainings (profiles/batch_laws.h). All of them come from small
// models: they warn, and they bound what is chosen unasked.
#pragma once

#include <array>
#include <string>

#include "profiles/batch_laws.h"
#include "profiles/operations.h"
#include "sim/core/model.h"

namespace shardwright::tuner {

/// More tokens than tiny steps need, that a batch which nobody gave may cost: what Zhang et al.
/// call critical, and about what published trainings take.
inline constexpr double kUsualOverhead = 0.2;

/// Nats per token after training on `tokens`, by Kaplan et al.
double expected_loss(const Model& model, double tokens, const profiles::Operations& constants);

/// Tokens of a step by one law.
double critical_tokens(const profiles::BatchLaw& law, const Model& model, double tokens,
                       const profiles::Operations& constants);

/// Tokens of a step by the law that ships.
double critical_tokens(const Model& model, double tokens, const profiles::Operations& constants);

struct CriticalTokens {
  double middle = 0;              // by the law that ships
  std::array<double, 2> range{};  // of the laws that call no published batch wasteful
  double published = 0;           // the largest share of it that a published training took
  std::string words;              // "Bergsma et al. 2025; Zhang et al. 2024"
};
CriticalTokens critical_range(const profiles::CriticalBatch& fitted, const Model& model,
                              double tokens, const profiles::Operations& constants);

}  // namespace shardwright::tuner
