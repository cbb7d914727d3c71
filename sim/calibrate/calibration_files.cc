// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/calibration_files.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "profiles/gpu_cost.h"
#include "profiles/gpu_file.h"
#include "profiles/stack_file.h"
#include "sim/calibrate/rows.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/trace/observations.h"
#include "sim/trace/step_trace.h"

namespace shardwright::sim {

namespace {

namespace fs = std::filesystem;

/// A shipped name stays; a path is given from where the new file stands.
std::string base_from(const std::string& base, const fs::path& out) {
  if (base.find('/') == std::string::npos && !base.ends_with(".json")) return base;
  std::error_code failed;
  const fs::path folder = fs::absolute(out).parent_path();
  const fs::path relative = fs::relative(fs::absolute(base), folder, failed);
  if (failed || relative.empty()) return fs::absolute(base).string();
  // A bare word would be looked up among the names that ship.
  return relative.string();
}

std::string what_from(const std::vector<profiles::ObservationSource>& sources,
                      const std::vector<profiles::AnchorStep>& anchors) {
  if (!anchors.empty()) {
    return fmt::format("a step of {:.4g} s of {} on {} GPUs", anchors.front().step_s,
                       anchors.front().model, anchors.front().gpus);
  }
  if (sources.size() == 1) return sources.front().file;
  return fmt::format("{} files", sources.size());
}

}  // namespace

std::string today() {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
}

void write_calibrated(const fs::path& out, const CalibratedFile& file,
                      const CalibrationResult& result) {
  profiles::Calibration record = record_of(result, file.stack, file.level);
  record.date = file.date;
  record.parent = file.base;
  record.sources = file.sources;
  record.anchors = file.anchors;
  for (profiles::ObservationSource& source : record.sources) source.step_s.clear();
  std::vector<profiles::SetEntry> set = file.facts;
  const std::string from = what_from(file.sources, file.anchors);
  for (profiles::SetEntry& entry : set_of(result, from, file.date)) {
    set.push_back(std::move(entry));
  }
  const std::string text = profiles::calibrated_json(
      out.stem().string(), fmt::format("{}, calibrated to {}", file.base, from),
      base_from(file.base, out), set, result.products, file.product_choices, record);
  const fs::path trial = fs::path(out) += ".new";
  try {
    write_file_atomically(trial, text);
    profiles::load_cluster(fs::absolute(trial).string());
  } catch (...) {
    std::error_code ignored;
    fs::remove(trial, ignored);
    throw;
  }
  fs::remove(trial);
  write_file_atomically(out, text);
}

void append(profiles::ObservationSet& set, profiles::ObservationSet more) {
  const auto sources = static_cast<std::int32_t>(set.sources.size());
  const auto units = static_cast<std::int32_t>(set.units.size());
  std::int64_t instances = 0;
  for (const profiles::Observation& o : set.observations) {
    instances = std::max(instances, o.instance + 1);
  }
  for (profiles::Observation& o : more.observations) {
    o.source += sources;
    if (o.instance >= 0) o.instance += instances;
    if (o.unit >= 0) o.unit += units;
  }
  const auto move_all = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move_all(more.sources, set.sources);
  move_all(more.units, set.units);
  move_all(more.observations, set.observations);
  move_all(more.left_out, set.left_out);
  move_all(more.notes, set.notes);
  set.kernel_seconds += more.kernel_seconds;
}

GatheredObservations gather(const std::vector<std::filesystem::path>& files,
                            const profiles::ImportOptions& options) {
  GatheredObservations result;
  std::vector<std::filesystem::path> others;
  for (const std::filesystem::path& file : files) {
    if (profiles::detect_format(file) != profiles::TraceFormat::kShardwright) {
      others.push_back(file);
      continue;
    }
    const StepTrace trace = read_step_trace(file);
    append(result.set, observations_of(trace));
    if (!result.identity) result.identity = trace.identity;
  }
  // Together, because the ranks of a job share its collectives.
  if (!others.empty()) append(result.set, profiles::import_observations(others, options));
  return result;
}

std::vector<profiles::SetEntry> adopt_processor(
    const std::vector<profiles::ObservationSource>& sources, const std::string& date,
    profiles::Profile& profile) {
  Gpu& gpu = profile.cluster.gpu;
  std::vector<profiles::SetEntry> set;
  if (!gpu.is_processor()) return set;
  const auto known =
      std::find_if(sources.begin(), sources.end(), [](const auto& s) { return s.sm_count > 0; });
  if (known == sources.end() || known->sm_count > 1 << 16) return set;
  const auto entry = [&](const char* path, const auto& value, const std::string& source) {
    nlohmann::ordered_json json{{"value", value}, {"source", source}, {"confidence", "high"}};
    if (!date.empty()) json["date"] = date;
    set.push_back({path, json.dump(), "", ""});
  };
  const std::string from = fmt::format("{}, as {} says", known->gpu, known->file);
  if (known->sm_count != gpu.sm_count) {
    const double ratio = static_cast<double>(known->sm_count) / gpu.sm_count;
    const std::string scaled = fmt::format("of the base, times {:.4g} for the cores", ratio);
    gpu.sm_count = static_cast<int>(known->sm_count);
    gpu.peak_bf16_flops *= ratio;
    gpu.peak_fp32_flops *= ratio;
    gpu.hbm_bytes_per_s *= ratio;
    entry("gpu.sm_count", gpu.sm_count, from);
    entry("gpu.peak_bf16_flops", gpu.peak_bf16_flops, scaled);
    entry("gpu.peak_fp32_flops", gpu.peak_fp32_flops, scaled);
    entry("gpu.hbm_bytes_per_s", gpu.hbm_bytes_per_s, scaled);
    // The rates of attention are absolute, those of products a share of the peak.
    for (auto& [kernel, attention] : profile.cost.attention) {
      const std::string path = "cost.attention." + kernel;
      attention.values.forward_flops *= ratio;
      attention.values.backward_flops *= ratio;
      entry((path + ".forward_flops").c_str(), attention.values.forward_flops, scaled);
      entry((path + ".backward_flops").c_str(), attention.values.backward_flops, scaled);
    }
  }
  if (known->memory_bytes > 0 && known->memory_bytes != gpu.memory_bytes) {
    gpu.memory_bytes = known->memory_bytes;
    entry("gpu.memory_bytes", gpu.memory_bytes, from);
  }
  profiles::follow_gpu(profile.cost, gpu);
  return set;
}

namespace {

/// An own trace of the host device.
bool of_processor(const profiles::ObservationSource& source) {
  return source.format == "shardwright" && source.gpu.find("NVIDIA") == std::string::npos;
}

profiles::ImportOptions import_options(const CalibrationRequest& request,
                                       const std::optional<std::string>& cluster) {
  profiles::ImportOptions options;
  options.model = request.model;
  if (request.gpus_per_node) {
    options.gpus_per_node = *request.gpus_per_node;
    options.gpus_per_node_given = true;
  } else if (cluster) {
    options.gpus_per_node = profiles::load_cluster(*cluster).cluster.gpus_per_node;
  }
  return options;
}

std::string stack_of(const CalibrationRequest& request, const GatheredObservations& gathered) {
  if (request.stack) return *request.stack;
  return gathered.identity ? gathered.identity->plan.stack : kForeignStack;
}

/// The base: as given, that of the profiles to merge, or for the host device the generic one.
std::string base_of(const CalibrationRequest& request,
                    const std::vector<profiles::ClusterFile>& merged,
                    const profiles::ObservationSet& set) {
  if (request.base) return *request.base;
  if (!merged.empty()) return merged.front().calibration->parent;
  if (!set.sources.empty() && std::all_of(set.sources.begin(), set.sources.end(), of_processor)) {
    return "host";
  }
  throw Error(
      "--base is missing, expected the cluster that the files were recorded on, for example "
      "dgx-h100; `shardwright inspect clusters` lists all",
      ExitCode::kUsage);
}

/// Whether the profiles' kind is not the base's.
bool is_other(const Gpu& known, const Gpu& gpu) {
  constexpr double kMemoryTolerance = 0.06;
  const auto memory = static_cast<double>(gpu.memory_bytes);
  return known.sm_count != gpu.sm_count ||
         std::abs(static_cast<double>(known.memory_bytes) - memory) > kMemoryTolerance * memory;
}

/// Refuses what was recorded on another GPU than the base's: told by its counts, by its name where
/// a file has no counts (nccl-tests), and one that no profile names unless `force`. A slice or a
/// new preset of the base's is said.
void hold_against_base(profiles::ObservationSet& set, const Gpu& gpu, const std::string& base,
                       bool force) {
  for (const profiles::ObservationSource& source : set.sources) {
    if (source.gpu.empty()) continue;
    const std::optional<Gpu> known =
        profiles::known_gpu({source.gpu, source.sm_count, source.memory_bytes});
    const std::string kind = known ? known->id : profiles::kind_named(source.gpu);
    const bool named = profiles::is_named_as(source.gpu, gpu.id);
    const bool of_cpu = of_processor(source);
    const bool unknown = !of_cpu && kind.empty() && !named;
    const bool other = known ? is_other(*known, gpu) : !named;
    if (of_cpu ? !gpu.is_processor() : gpu.is_processor() || (other && !(unknown && force))) {
      throw Error(fmt::format(
          "{}: was recorded on {}, but --base {} is of {}; expected a base of what was recorded{}",
          source.file, source.gpu, base, gpu.id,
          !kind.empty() ? ", for example " + profiles::load_gpu(kind).usual_cluster
          : unknown     ? ", or --force for a GPU that no profile names"
                        : ""));
    }
    if (!gpu.is_processor() && !known && source.sm_count > 0 && source.sm_count != gpu.sm_count) {
      set.notes.push_back(
          fmt::format("{} was recorded on {} with {} multiprocessors; the base's {} has {}.",
                      source.file, source.gpu, source.sm_count, gpu.id, gpu.sm_count));
    }
  }
}

std::vector<profiles::ClusterFile> profiles_to_merge(const std::vector<std::string>& names) {
  std::vector<profiles::ClusterFile> files;
  for (const std::string& name : names) {
    files.push_back(profiles::load_cluster(name));
    const auto& calibration = files.back().calibration;
    if (!calibration) {
      throw Error(fmt::format("--merge is '{}', expected a profile that calibrate wrote", name));
    }
    const profiles::Calibration& first = *files.front().calibration;
    if (calibration->parent != first.parent || calibration->stack != first.stack) {
      throw Error(fmt::format(
          "--merge: {} was calibrated from {} with stack '{}' and {} from {} with stack '{}', "
          "expected profiles of one base and stack",
          names.front(), first.parent, first.stack, name, calibration->parent, calibration->stack));
    }
  }
  return files;
}

}  // namespace

FileCalibration calibrate_files(const CalibrationRequest& request) {
  const std::vector<profiles::ClusterFile> others = profiles_to_merge(request.merge);
  FileCalibration done;
  profiles::ObservationSet& set = done.gathered.set;
  CalibratedFile& file = done.file;
  if (!request.files.empty()) {
    done.gathered = gather(request.files, import_options(request, request.base));
  }
  file.base = base_of(request, others, set);
  file.stack = !others.empty() && !request.stack ? others.front().calibration->stack
                                                 : stack_of(request, done.gathered);
  file.date = today();
  profiles::Profile base = profiles::load_profile(file.base, file.stack);
  hold_against_base(set, base.cluster.gpu, file.base, request.force);

  Rows rows = rows_of(set);
  done.rows_left_out = std::move(rows.left_out);
  file.sources = set.sources;
  for (const profiles::ClusterFile& other : others) {
    const profiles::Calibration& calibration = *other.calibration;
    rows.rows.insert(rows.rows.end(), calibration.rows.begin(), calibration.rows.end());
    file.sources.insert(file.sources.end(), calibration.sources.begin(), calibration.sources.end());
  }
  if (rows.rows.empty()) {
    std::vector<std::string> names;
    for (const std::filesystem::path& path : request.files) names.push_back(path.string());
    throw Error(fmt::format("{}: no operation in it can be fitted to{}", fmt::join(names, ", "),
                            set.notes.empty() ? "" : "; " + set.notes.front()));
  }
  file.facts = adopt_processor(file.sources, file.date, base);
  done.result = calibrate(base, merged(rows.rows), {file.level});
  return done;
}

Drift drift_of_files(const CalibrationRequest& request, const std::string& name) {
  const profiles::ClusterFile cluster = profiles::load_cluster(name);
  if (!cluster.calibration) {
    throw Error(fmt::format("--check is '{}', expected a profile that calibrate wrote", name));
  }
  const GatheredObservations gathered = gather(request.files, import_options(request, name));
  const std::string stack =
      cluster.calibration->stack.empty() ? stack_of(request, gathered) : cluster.calibration->stack;
  const profiles::Profile profile = profiles::make_profile(cluster, profiles::load_stack(stack));
  return drift_of(profile, *cluster.calibration, rows_of(gathered.set).rows, gathered.set.sources);
}

}  // namespace shardwright::sim
