// SPDX-License-Identifier: Apache-2.0
// A machine whose true values are known, and timings of it as a trace would have them: log-normal
// noise, one in twenty disturbed by up to three times, and ranks that arrive late at collectives.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "profiles/observation.h"
#include "profiles/profile.h"
#include "sim/calibrate/fit_group.h"
#include "sim/calibrate/rows.h"

namespace shardwright::sim::synthetic {

struct Noise {
  double deviation = 0.03;  // of logarithms
  double outliers = 0.05;
  double late_s = 50e-6;  // mean delay of the last rank
};

inline profiles::Observation product(std::int64_t m, std::int64_t n, std::int64_t k) {
  profiles::Observation o;
  o.op = OpKind::kUpProjection;
  o.work.kind = WorkKind::kGemm;
  o.work.m = m;
  o.work.n = n;
  o.work.k = k;
  return o;
}

inline profiles::Observation attention(std::int64_t tokens, bool backward,
                                       std::int64_t heads = 32) {
  profiles::Observation o;
  o.op = OpKind::kAttention;
  o.phase = backward ? Phase::kBackward : Phase::kForward;
  o.work.kind = WorkKind::kAttention;
  o.work.m = heads;
  o.work.n = tokens;
  o.work.k = 128;
  o.work.backward = backward;
  return o;
}

inline profiles::Observation memory(OpKind op, std::int64_t bytes, Phase phase = Phase::kForward,
                                    MemoryClass kind = MemoryClass::kStream) {
  profiles::Observation o;
  o.op = op;
  o.phase = phase;
  o.work.kind = WorkKind::kMemory;
  o.work.memory_class = kind;
  o.work.bytes = bytes;
  return o;
}

inline profiles::Observation collective(OpKind op, std::int64_t bytes, std::int64_t ranks,
                                        std::int64_t nodes = 1) {
  profiles::Observation o;
  o.op = op;
  o.work.kind = WorkKind::kCollective;
  o.work.bytes = bytes;
  o.ranks = ranks;
  o.nodes = nodes;
  return o;
}

inline profiles::Observation launch(Phase phase, int kernels = 1) {
  profiles::Observation o;
  o.phase = phase;
  o.work.kind = WorkKind::kHost;
  o.work.kernels = static_cast<std::uint16_t>(kernels);
  return o;
}

/// Every operation of `design`, timed `repeats` times on each of its ranks.
inline profiles::ObservationSet timed(const profiles::Profile& truth,
                                      const std::vector<profiles::Observation>& design, int repeats,
                                      std::mt19937& random, Noise noise = {}) {
  profiles::ObservationSet set;
  profiles::ObservationSource& source = set.sources.emplace_back();
  source.file = "synthetic.json";
  source.format = "shardwright";
  source.gpu = "synthetic";
  std::vector<profiles::MeasuredRow> rows;
  for (const profiles::Observation& o : design) {
    rows.push_back({o, 0, 1, true});
    rows.back().operation.seconds = 1;
  }
  const RowTimes times(truth, sharing_of(truth, {}));
  std::normal_distribution<double> normal(0, noise.deviation);
  std::exponential_distribution<double> late(1 / noise.late_s);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::int64_t instance = 0;
  for (const profiles::MeasuredRow& row : rows) {
    const double truly = times.seconds(row);
    for (int repeat = 0; repeat < repeats; ++repeat, ++instance) {
      const bool waits = row.operation.work.kind == WorkKind::kCollective;
      // All ranks of a collective end together; who comes last has waited for nobody.
      const double own = truly * std::exp(normal(random)) *
                         (uniform(random) < noise.outliers ? 1 + 2 * uniform(random) : 1);
      for (std::int64_t rank = 0; rank < (waits ? row.operation.ranks : 1); ++rank) {
        profiles::Observation o = row.operation;
        o.rank = static_cast<std::int32_t>(rank);
        o.step = repeat;
        o.instance = waits ? instance : -1;
        o.seconds = own + (waits && rank > 0 ? late(random) : 0);
        set.observations.push_back(o);
      }
    }
  }
  return set;
}

/// `base` with every value of the group moved by a random factor, `share` of its spread.
inline profiles::Profile moved(const profiles::Profile& base, profiles::CostGroup group,
                               double share, std::mt19937& random) {
  EditableProfile truth(base);
  std::normal_distribution<double> normal(0, share);
  for (const Adjustable& value : adjustable_values(base, group)) {
    if (value.path == "stack.gemm_efficiency") continue;
    double* number = truth.find(value.path);
    const double factor = std::exp(value.spread * std::clamp(normal(random), -1.5, 1.5));
    // Well inside of what is accepted.
    *number = std::clamp(*number * factor, value.lower, 0.97 * value.upper);
  }
  return truth.profile();
}

}  // namespace shardwright::sim::synthetic
