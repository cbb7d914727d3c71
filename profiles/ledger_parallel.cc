// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger_parallel.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "profiles/data_dir.h"
#include "profiles/data_file.h"
#include "profiles/usual_plan.h"
#include "sim/core/error.h"
#include "sim/core/json_file.h"
#include "sim/core/parallelism.h"
#include "sim/core/parse_number.h"
#include "sim/core/parse_value.h"

namespace shardwright::profiles {
namespace {

void read_size(const CsvRow& row, std::string_view column, std::int64_t& value,
               std::int64_t least = 1) {
  const auto given = row.find<std::int64_t>(column);
  if (!given) return;
  if (*given < least) row.fail(column, least == 0 ? "a whole number" : "a whole number above 0");
  value = *given;
}

std::optional<bool> read_switch(const CsvRow& row, std::string_view column) {
  const std::string_view text = row.text(column);
  if (text.empty()) return std::nullopt;
  if (text != "0" && text != "1") row.fail(column, "1, 0 or nothing");
  return text == "1";
}

template <typename Enum>
std::optional<Enum> read_word(const CsvRow& row, std::string_view column) {
  const std::string_view text = row.text(column);
  if (text.empty()) return std::nullopt;
  const std::optional<Enum> value = parallel_word<Enum>(text);
  if (!value) row.fail(column, words_of<Enum>());
  return value;
}

void read_model(const CsvRow& row, Model& model) {
  Experts& experts = model.experts;
  read_size(row, "experts", experts.count, 0);
  read_size(row, "topk", experts.per_token, 0);
  read_size(row, "moe_ffn", experts.ffn, 0);
  read_size(row, "shared_ffn", experts.shared_ffn, 0);
  read_size(row, "dense_layers", experts.first_layer, 0);
  read_size(row, "mtp", model.mtp_layers, 0);
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
  if (text.find("full_iteration") != std::string_view::npos) return CudaGraphs::kStep;
  return CudaGraphs::kLayers;
}

void read_recomputed_modules(const CsvRow& row, const Model& model, Plan& plan) {
  if (row.text("recompute") != "modules") return;
  try {
    set_recompute(plan, row.text("recompute_modules"));
  } catch (const Error&) {
    row.fail("recompute_modules", "modules such as core_attn, layernorm, moe_act joined by ','");
  }
  plan.ckpt_layers = model.layers;
}

/// What the row leaves to its edition of the software.
void read_usual(const CsvRow& row, LedgerRow& out) {
  static std::map<std::array<std::string, 3>, UsualPlan> known;
  const std::string architecture(row.text("arch"));
  const auto [at, fresh] = known.try_emplace({out.plan.stack, out.software, architecture});
  if (fresh && !out.plan.stack.empty()) {
    at->second = usual_plan(load_edition(out.plan.stack, out.software).stack.id, architecture);
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
  if (out.model.is_mixture() && !p.dispatcher && !p.expert_capacity)
    p.dispatcher = usual.dispatcher;
  Numerics& n = out.plan.numerics;
  const bool scaled_so = n.fp8_recipe == Fp8Recipe::kDelayed ||
                         n.fp8_recipe == Fp8Recipe::kTensorwise ||
                         n.fp8_recipe == Fp8Recipe::kMxfp8;
  n.fp8_params = read_switch(row, "fp8_params")
                     .value_or(usual.fp8_params && n.precision == Precision::kFp8 && scaled_so);
}

}  // namespace

bool has_parallel_columns(const CsvTable& table) {
  return table.has_column("tp") && table.has_column("pp");
}

void read_parallel_columns(const CsvRow& row, LedgerRow& out) {
  read_model(row, out.model);
  Plan& plan = out.plan;
  Parallelism& p = plan.parallel;
  read_size(row, "tp", p.tp);
  if (p.tp > 1) p.sp = read_switch(row, "sp");
  read_size(row, "pp", p.pp);
  read_size(row, "vpp", p.virtual_stages);
  if (row.text("pp_schedule") != "none") {
    p.pp_schedule = read_word<PipelineKind>(row, "pp_schedule");
  }
  // "embedding and loss count as a layer" is what equal parts come to where they do.
  const std::string_view layout = row.text("pp_layout");
  if (layout.find('|') != std::string_view::npos) p.pp_layout = layout;
  read_size(row, "cp", p.cp);
  p.cp_comm = read_word<ContextComm>(row, "cp_comm");
  read_size(row, "ep", p.ep);
  read_size(row, "etp", p.etp);
  if (p.tp > 1) p.tp_overlap = read_word<TensorOverlap>(row, "tp_overlap");
  p.ep_overlap = read_switch(row, "ep_overlap");
  p.dispatcher = read_word<Dispatcher>(row, "dispatcher");
  // Token-drop recipes pad every expert to its balanced rows.
  if (row.text("routing") == "token-drop") p.expert_capacity = 1;
  p.overlap_grad_reduce = read_switch(row, "overlap_grad_reduce");
  p.overlap_param_gather = read_switch(row, "overlap_param_gather");
  p.cuda_graphs = read_graphs(row);
  Numerics& n = plan.numerics;
  n.precision = read_word<Precision>(row, "precision").value_or(Precision::kBf16);
  if (n.precision == Precision::kFp8) n.fp8_recipe = read_word<Fp8Recipe>(row, "fp8_recipe");
  out.software = row.text("version");  // unless a column of its own says more
  read_usual(row, out);
  read_recomputed_modules(row, out.model, plan);
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
