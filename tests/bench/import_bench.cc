// SPDX-License-Identifier: Apache-2.0
// How fast a trace of torch.profiler is read, on one core, and in how much memory.
//
// SHARDWRIGHT_IMPORT_MB=1000 bench/import_bench reads a trace of a gigabyte.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "profiles/import/import_observations.h"
#include "tests/profiles/kineto_text.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

std::size_t wanted_bytes() {
  const char* megabytes = std::getenv("SHARDWRIGHT_IMPORT_MB");
  return (megabytes != nullptr ? std::strtoul(megabytes, nullptr, 10) : 10) * 1'000'000;
}

std::string trace_of(std::size_t bytes) {
  KinetoText trace(0, 8);
  trace.open("ProfilerStep#1", "user_annotation");
  while (trace.size() < bytes) {
    trace.open("aten::linear", "cpu_op",
               shapes("[[1, 4096, 4096], [11008, 4096], []]",
                      R"(["c10::BFloat16", "c10::BFloat16", ""])"));
    trace.open("aten::mm", "cpu_op",
               shapes("[[4096, 4096], [4096, 11008]]", R"(["c10::BFloat16", "c10::BFloat16"])"));
    trace.kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
                 560);
    trace.close().close();
  }
  return trace.close().text();
}

/// The largest resident size since the last call, in MiB; Linux only.
double peak_mib() {
  double peak = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) peak = std::strtod(line.c_str() + 6, nullptr) / 1024;
  }
  std::ofstream("/proc/self/clear_refs") << 5;
  return peak;
}

void import_kineto(benchmark::State& state, bool packed) {
  const testing::TempFolder folder;
  const auto file = folder.path() / (packed ? "trace.json.gz" : "trace.json");
  std::size_t bytes = 0;
  {
    const std::string text = trace_of(wanted_bytes());
    bytes = text.size();
    packed ? write_gzip(file, text) : write_text(file, text);
  }
  peak_mib();
  for (auto _ : state) benchmark::DoNotOptimize(import_observations({file}));
  state.counters["peak_MiB"] = peak_mib();
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
}
BENCHMARK_CAPTURE(import_kineto, plain, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(import_kineto, gzip, true)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardwright::profiles
