// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <map>
#include <variant>

#include "profiles/cost_fields.h"
#include "profiles/edit_value.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/read_file.h"
#include "sim/fit/fit_steps.h"

namespace shardwright::sim {
namespace {

namespace fs = std::filesystem;
using profiles::StepParameter;
using profiles::StepScope;

constexpr std::size_t kMostStepFileBytes = std::size_t{4} << 20;

/// The provenances of the parameter set that holds `path` ("attention.triton.forward_flops"), and
/// the key in it.
std::pair<std::map<std::string, profiles::Provenance>*, std::string> set_of(
    profiles::GpuCost& cost, const std::string& path) {
  const auto after = [&](std::string_view group) { return path.substr(group.size() + 1); };
  if (path.starts_with("gemm.")) return {&cost.gemm.apart, after("gemm")};
  if (path.starts_with("memory.")) return {&cost.memory.apart, after("memory")};
  for (auto& [kernel, params] : cost.attention) {
    const std::string group = "attention." + kernel;
    if (path.starts_with(group + '.')) return {&params.apart, after(group)};
  }
  throw Error(
      fmt::format("step_parameters.json: cost.{} cannot be written, expected a value of "
                  "gemm, memory or an attention kernel that the GPU has",
                  path));
}

void set_number(profiles::GpuCost& cost, const std::string& path, double value) {
  profiles::FieldList fields;
  describe(fields, cost);
  const profiles::Field* field = fields.find(path);
  if (field == nullptr || !std::holds_alternative<double*>(field->target)) {
    throw Error(fmt::format("step_parameters.json: cost.{} is no number of a GPU", path));
  }
  *std::get<double*>(field->target) = value;
}

/// Kernels that are said to be those of `gpu` follow it.
void set_analogues(const std::string& gpu, const std::string& path, double value,
                   profiles::GpuCosts& costs) {
  for (auto& [id, cost] : costs.gpus) {
    for (const auto& [kernel, params] : cost.attention) {
      if (params.provenance.analogue_of == gpu && path.starts_with("attention." + kernel + '.')) {
        set_number(cost, path, value);
      }
    }
  }
}

void write_costs(const StepParameter& p, const profiles::Provenance& provenance,
                 profiles::GpuCosts& costs) {
  for (const std::string& gpu : p.applies_to) {
    costs.at(gpu);  // throws for an unknown one
    profiles::GpuCost& cost = costs.gpus.at(gpu);
    for (const profiles::StepTarget& target : p.targets) {
      const std::string path = target.path.substr(std::string_view("cost.").size());
      const double value = rounded(target.times * p.fitted->value);
      set_number(cost, path, value);
      set_analogues(gpu, path, value, costs);
      const auto [apart, key] = set_of(cost, path);
      (*apart)[key] = provenance;
    }
  }
}

std::string folder_of(StepScope scope) {
  return fmt::format("{}s", name_of(scope));
}

void write_text(const StepParameter& p, const profiles::Origin& origin, const fs::path& from,
                std::map<std::string, std::string>& texts) {
  for (const std::string& id : p.applies_to) {
    const std::string file = fmt::format("{}/{}.json", folder_of(p.scope), id);
    auto at = texts.find(file);
    if (at == texts.end())
      at = texts.emplace(file, read_file(from / file, kMostStepFileBytes)).first;
    for (const profiles::StepTarget& target : p.targets) {
      at->second =
          profiles::with_value(at->second, file, target.path.substr(target.path.find('.') + 1),
                               target.times * p.fitted->value, origin);
    }
  }
}

}  // namespace

std::vector<fs::path> save_steps(const FittedSteps& fitted, const fs::path& from,
                                 const fs::path& to) {
  const profiles::StepParameters& all = fitted.parameters;
  profiles::GpuCosts costs = profiles::load_gpu_costs(from / "fitted" / "gpu_cost.json");
  std::map<std::string, std::string> texts;
  for (const StepParameter& p : all.parameters) {
    // What only some sources see stays with the constant (profiles::apply_source_constants).
    if (!p.fitted || !p.sources.empty()) continue;
    const std::string source =
        fmt::format("{}; fitted to the {} that see it, from a prior of {:.4g}: {}", p.meaning,
                    all.source, p.prior, p.prior_source);
    if (p.scope == StepScope::kGpu) {
      write_costs(
          p, {source, "fitted", "", all.command, all.date, p.fitted->in_sample, p.fitted->held_out},
          costs);
    } else {
      write_text(p, {fmt::format("{}; {}", source, all.command), "inferred", all.date}, from,
                 texts);
    }
  }
  std::vector<fs::path> written;
  const auto target = [&](const fs::path& file) {
    fs::create_directories((to / file).parent_path());
    return written.emplace_back(to / file);
  };
  save_gpu_costs(costs, target("fitted/gpu_cost.json"));
  for (const auto& [file, text] : texts) write_file_atomically(target(file), text);
  save_step_parameters(all, target("fitted/step_parameters.json"));
  save_uncertainty(fitted.uncertainty, fitted.leave_one_out.runs, target("fitted/residuals.json"));
  return written;
}

}  // namespace shardwright::sim
