// SPDX-License-Identifier: Apache-2.0
#include "sim/score/layer_period.h"

#include "profiles/ledger/ledger_profile.h"
#include "sim/pipeline/step_program.h"
#include "sim/predict.h"

namespace shardwright::sim {

double backward_layer_period_s(const Schedule& schedule, const Timeline& timeline) {
  const std::int64_t newest = schedule.layers * 3 / 4;  // backward goes from here ...
  const std::int64_t oldest = schedule.layers / 4;      // ... down to here
  if (oldest >= newest || oldest < 1) return 0;
  // The first backward kernel of each of the two layers; later micro-batches overwrite earlier
  // ones.
  OpId first_of_newest = -1, first_of_oldest = -1;
  std::int64_t previous_unit = -1;
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    const bool kernel = op.work.kind == WorkKind::kGemm || op.work.kind == WorkKind::kMemory;
    if (op.phase != Phase::kBackward || op.stream != 0 || !kernel) return;
    if (at.unit == previous_unit) return;
    previous_unit = at.unit;
    if (at.unit == newest) first_of_newest = at.id;
    if (at.unit == oldest) first_of_oldest = at.id;
  });
  Nanoseconds begin = 0, end = 0;
  for (const Span& span : timeline.spans) {
    if (span.id == first_of_newest) begin = span.begin_ns;
    if (span.id == first_of_oldest) end = span.begin_ns;
  }
  return static_cast<double>(end - begin) * 1e-9 / static_cast<double>(newest - oldest);
}

std::vector<LayerPeriod> predict_layer_periods(const CsvTable& table,
                                               const std::vector<std::string>& overrides) {
  const std::vector<profiles::LedgerRow> rows = profiles::read_ledger(table);
  std::vector<LayerPeriod> periods;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const profiles::LedgerRow& row = rows[i];
    const auto measured_ms = table[i].require<double>("backward_layer_ms");
    if (measured_ms <= 0) table[i].fail("backward_layer_ms", "a number above 0");
    Predictor predictor(row.model, profiles::profile_of(row, overrides));
    Timeline timeline;
    PredictOptions options;
    options.reserved = false;
    options.timeline = &timeline;
    predictor.predict(row.plan, options);
    const std::vector<Schedule>& stages = predictor.program().stages;
    if (stages.size() > 1) table[i].fail("pp", "1, which has a backward pass of all layers");
    periods.push_back({row, measured_ms * 1e-3, backward_layer_period_s(stages.front(), timeline)});
  }
  return periods;
}

}  // namespace shardwright::sim
