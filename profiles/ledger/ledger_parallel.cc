// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger_parallel.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "profiles/data_dir.h"
#include "profiles/data_file.h"
#include "profiles/ledger/usual_plan.h"
#include "sim/core/base/error.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/parse_value.h"
#include "sim/core/parallelism.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::profiles {
namespace {

void read_size(const CsvRow& row, std::string_view column, std::int64_t& value) {
  const auto given = row.find<std::int64_t>(column);
  if (!given) return;
  if (*given < 0) row.fail(column, "a whole number");
  value = *given;
}

void read_model(const CsvRow& row, Model& model) {
  Experts& experts = model.experts;
  read_size(row, "experts", experts.count);
  read_size(row, "topk", experts.per_token);
  read_size(row, "moe_ffn", experts.ffn);
  read_size(row, "shared_ffn", experts.shared_ffn);
  read_size(row, "dense_layers", experts.first_layer);
  read_size(row, "mtp", model.mtp_layers);
  std::string latent(row.text("mla"));
  if (latent.empty()) return;
  std::replace(latent.begin(), latent.end(), '/', ',');
  std::vector<std::int64_t> sizes;
  for (const std::string& part : split_commas(latent)) {
    sizes.push_back(parse_int64(part).value_or(-1));
  }
  if (sizes.size() != 5 || *std::min_element(sizes.begin(), sizes.end()) < 0) {
    row.fail("mla", "q_lora/kv_lora/qk_nope/qk_rope/v");
  }
  model.latent = {sizes[1], sizes[0], sizes[2], sizes[3], sizes[4]};
  model.head_dim = sizes[2] + sizes[3];
}

/// "TE:attn", "full_iteration", "none:..." as recipes write it.
std::optional<CudaGraphs> read_graphs(const CsvRow& row) {
  const std::string_view text = row.text("cuda_graph");
  if (text.empty()) return std::nullopt;
  if (text.starts_with("none")) return CudaGraphs::kNone;
  const auto holds = [&](std::string_view module) {
    return text.find(module) != std::string_view::npos;
  };
  if (holds("full_iteration")) return CudaGraphs::kStep;
  if (!holds("'")) return CudaGraphs::kLayers;
  // A recurrence is the same half of a layer.
  const bool attention = holds("'attn'") || holds("'mamba'"),
             rest = holds("'moe_router'") || holds("'mlp'");
  return attention && rest ? CudaGraphs::kLayers
         : attention       ? CudaGraphs::kAttention
                           : CudaGraphs::kRouter;
}

void read_recomputed_modules(const CsvRow& row, LedgerRow& out) {
  if (row.text("recompute") != "modules") return;
  const std::string_view modules = row.text("recompute_modules");
  try {
    set_recompute(out.plan, modules);
  } catch (const InvalidPlan&) {
    out.unsupported = unknown_word("recompute_modules", modules);
  }
  out.plan.ckpt_layers = out.model.layers;
}

/// Whether a row means what it says of a knob: recipes keep settings of what they do not use.
bool counts(const CsvRow& row, const PlanKnob& knob, const Plan& plan) {
  const std::string_view text = row.text(knob.column);
  if (knob.name == "sp" || knob.name == "tp-overlap") return plan.parallel.tp > 1;
  if (knob.name == "fp8-recipe") return plan.numerics.precision == Precision::kFp8;
  if (knob.name == "pp-schedule") return text != "none";
  // "embedding and loss count as a layer" is what equal parts come to where they do.
  if (knob.name == "pp-layout") return text.find('|') != std::string_view::npos;
  return true;
}

/// What the row leaves to its preset of the software.
void read_usual(const CsvRow& row, LedgerRow& out) {
  static std::map<std::array<std::string, 4>, UsualPlan> known;
  const std::string architecture(row.text("arch")), gpu(row.text("gpu"));
  const auto [at, fresh] = known.try_emplace({out.plan.stack, out.software, architecture, gpu});
  if (fresh && !out.plan.stack.empty()) {
    at->second = usual_plan(load_preset(out.plan.stack, out.software).stack.id, architecture, gpu);
  }
  const UsualPlan& usual = at->second;
  if (row.text("reduce_dtype").empty() && usual.reduce_dtype) {
    out.plan.reduce_dtype = *usual.reduce_dtype;
  }
  if (row.text("recompute").empty() && !usual.recompute.empty()) {
    set_recompute(out.plan, usual.recompute);
    out.plan.ckpt_layers = out.model.layers;
  }
  Parallelism& p = out.plan.parallel;
  if (out.model.is_moe() && !p.dispatcher && !p.expert_capacity) p.dispatcher = usual.dispatcher;
  Numerics& n = out.plan.numerics;
  const bool scaled_so = n.fp8_recipe == Fp8Recipe::kDelayed ||
                         n.fp8_recipe == Fp8Recipe::kTensorwise ||
                         n.fp8_recipe == Fp8Recipe::kMxfp8;
  if (row.text("fp8_params").empty()) {
    n.fp8_params = usual.fp8_params && n.precision == Precision::kFp8 && scaled_so;
  }
}

}  // namespace

std::string unknown_word(std::string_view column, std::string_view word) {
  return fmt::format("{} is {}, which is not known", column, word);
}

void read_knob(const CsvRow& row, const PlanKnob& knob, Plan& plan, std::string* unsupported) {
  try {
    knob.from_row(row, plan);
  } catch (const Error&) {  // goes on where it is no unknown word
    const std::string_view text = row.text(knob.column);
    const bool is_word = !text.empty() && !parse_double(text);
    if (unsupported == nullptr || !is_word) throw;
    *unsupported = unknown_word(knob.column, text);
  }
}

bool has_parallel_columns(const CsvTable& table) {
  return table.has_column("tp") && table.has_column("pp");
}

void read_parallel_columns(const CsvRow& row, LedgerRow& out) {
  read_model(row, out.model);
  Plan& plan = out.plan;
  for (const PlanKnob& knob : plan_knobs()) {
    if (knob.divides && !knob.column.empty() && counts(row, knob, plan))
      read_knob(row, knob, plan, &out.unsupported);
  }
  Parallelism& p = plan.parallel;
  // One chunk a stage leaves nothing to interleave.
  if (p.virtual_stages == 1 && info_of(p.schedule()).takes_virtual_stages()) p.pp_schedule.reset();
  // Token-drop recipes pad every expert to its balanced rows.
  if (row.text("routing") == "token-drop") p.expert_capacity = 1;
  p.cuda_graphs = read_graphs(row);
  out.software = row.text("version");  // unless a column of its own says more
  read_usual(row, out);
  read_recomputed_modules(row, out);
  out.quality = row.text("quality");
  out.version = row.text("version");
}

std::string shipped_stack(std::string_view name) {
  const std::vector<std::string> shipped = shipped_names(DataKind::kStack);
  if (std::find(shipped.begin(), shipped.end(), name) != shipped.end()) return std::string(name);
  static const JsonFile similar = JsonFile::load(data_dir() / "similar_stacks.json");
  const JsonReader names = similar.root().require_object("similar");
  return names.optional<std::string>(name, "");
}

std::filesystem::path published_machine(std::string_view source, std::string_view gpu) {
  static const JsonFile machines = JsonFile::load(data_dir() / "published" / "machines.json");
  for (const JsonReader& machine : machines.root().require_array("machines")) {
    if (machine.require<std::string>("source") == source &&
        machine.require<std::string>("gpu") == gpu) {
      return data_dir() / "published" / machine.require<std::string>("cluster");
    }
  }
  return {};
}

}  // namespace shardwright::profiles
