// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/calibration.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/inspect/inspect.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "profiles/cluster_file.h"

namespace shardwright::cli {
namespace {

using profiles::Calibration;
using profiles::ClusterFile;

std::string sources_table(const Calibration& calibration, const Terminal& out) {
  Table table({"file", "format", "gpu", "ranks", "software", "date"});
  for (const profiles::ObservationSource& source : calibration.sources) {
    table.add_row({source.file + (source.truncated ? " (cut short)" : ""), source.format,
                   source.gpu, source.world_size > 0 ? fmt::format("{}", source.world_size) : "",
                   source.software, source.date});
  }
  return table.render(out);
}

std::string groups_table(const Calibration& calibration, const Terminal& out) {
  Table table({"what", "operations", "timings", "before", "fitted", "held out",
               right(fmt::format("{} interval", percent(calibration.level, 0)))});
  for (const profiles::CalibratedGroup& group : calibration.groups) {
    table.add_row({name_of(group.group), thousands(group.rows), thousands(group.observations),
                   median_error(group.before), median_error(group.in_sample),
                   median_error(group.held_out),
                   group.half_width > 0 ? "+-" + percent(group.half_width) : "not known"});
  }
  return table.render(out);
}

std::string values_table(const Calibration& calibration, const Terminal& out) {
  Table table({"value", right("before"), right("now"), right("95 % interval"), "operations"});
  for (const profiles::CalibratedValue& value : calibration.values) {
    table.add_row({value.path, fmt::format("{:.4g}", value.before),
                   fmt::format("{:.4g}", value.after),
                   fmt::format("{:.4g} to {:.4g}", value.low, value.high), value.rows});
  }
  return table.render(out);
}

std::string anchor_sentence(const profiles::AnchorStep& anchor) {
  return fmt::format(
      "Anchored by {} of {} on {} GPUs ({}): {} measured, {} predicted, {} of the difference "
      "carried to other runs of that model.",
      counted(anchor.steps, "step"), anchor.model, anchor.gpus, anchor.plan,
      duration(anchor.step_s), duration(anchor.predicted_s), percent(anchor.carried, 0));
}

}  // namespace

std::string inspect_calibration(const std::string& name, Form form, const Terminal& out) {
  const ClusterFile file = profiles::load_cluster(name);
  if (form == Form::kJson) return to_json(file) + "\n";
  std::string text = fmt::format("{}\n", paint(out, Style::kBold, "profile " + file.cluster.id));
  text += paragraph(file.description, out);
  if (!file.calibration) {
    return text + "\n" +
           paragraph(
               "It carries no calibration: its values are those of the cluster's file and of "
               "the parameters that ship (`shardwright inspect cluster`, `inspect gpu`). "
               "`shardwright calibrate` makes one from traces.",
               out);
  }
  const Calibration& calibration = *file.calibration;
  text += "\n" +
          paragraph(fmt::format("Calibrated on {} from {}{}.", calibration.date, calibration.parent,
                                calibration.stack.empty()
                                    ? std::string()
                                    : fmt::format("; values of the framework hold for {}",
                                                  calibration.stack)),
                    out);
  for (const profiles::AnchorStep& anchor : calibration.anchors)
    text += paragraph(anchor_sentence(anchor), out);
  if (!calibration.sources.empty())
    text += heading(out, "Sources") + sources_table(calibration, out);
  if (!calibration.groups.empty())
    text += heading(out, "Errors (medians)") + groups_table(calibration, out);
  if (!calibration.values.empty()) {
    text += heading(out, "Values that moved") + values_table(calibration, out);
  }
  if (!file.measured_products.empty()) {
    text += "\n" + paragraph(fmt::format("{} GEMMs were timed; their times win over the "
                                         "formula.",
                                         file.measured_products.size()),
                             out);
  }
  if (const ProductChoices& chosen = file.product_choices; !chosen.choices.empty()) {
    text += "\n" + paragraph(fmt::format("For {} products it names the fastest algorithm of "
                                         "cuBLASLt {} on the {}, which run takes.",
                                         chosen.choices.size(), chosen.release, chosen.gpu),
                             out);
  }
  return text;
}

}  // namespace shardwright::cli
