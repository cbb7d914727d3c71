// How fast a trace of torch.profiler is read: bytes of JSON per second on one core, and the memory
// per byte that the tables of it take are what bounds the size of traces that can be used.
#include <benchmark/benchmark.h>

#include "profiles/import/import_observations.h"
#include "tests/profiles/kineto_text.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

std::string trace_of(int operators) {
  KinetoText trace(0, 8);
  trace.open("ProfilerStep#1", "user_annotation");
  for (int i = 0; i < operators; ++i) {
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

void import_kineto(benchmark::State& state, bool packed) {
  const testing::TempFolder folder;
  const std::string text = trace_of(20000);
  const auto file = packed ? write_gzip(folder.path() / "t.json.gz", text)
                           : write_text(folder.path() / "t.json", text);
  for (auto _ : state) benchmark::DoNotOptimize(import_observations({file}));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(text.size()));
}
BENCHMARK_CAPTURE(import_kineto, plain, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(import_kineto, gzip, true)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardwright::profiles
