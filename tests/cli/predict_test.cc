// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <map>

#include "cli/render/words/plan.h"
#include "profiles/profile.h"
#include "sim/core/plan_json.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

ProgramResult predict(const Words& flags) {
  return run_program(joined({SHARDWRIGHT_BINARY, "predict"}, flags));
}

Words main_job(const Words& more = {}) {
  return joined({"--model", "llama-3-70b", "--cluster", "a100-80g-4xhdr200", "--gpus", "256",
                 "--seq-len", "2048", "--ckpt-layers", "20", "--stack", "hf-eager"},
                more);
}

Words small(const Words& more = {}) {
  return joined({"--model", "llama-2-7b", "--cluster", "dgx-h100"}, more);
}

json predicted(const Words& flags) {
  Words with_json = joined(flags, {"--json"});
  const ProgramResult result = predict(with_json);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, ::testing::AnyOf("", ::testing::StartsWith("note: ")));
  return result.exit_code == 0 ? json::parse(result.out) : json::object();
}

std::string words_about(const json& prediction, const std::string& what) {
  for (const json& origin : prediction.at("origins")) {
    if (origin.at("what") == what) return origin.at("words");
  }
  return "";
}

json plan_of(const Words& flags) {
  return predicted(flags).at("inputs").at("plan");
}

/// An interval that a calibration or the plan's own kind gives holds nothing for the scale.
TEST(Predict, NamesTheScaleOnlyWhereItWidensTheInterval) {
  const profiles::Profile profile = profiles::load_profile("p5", "torch-compile");
  sim::Prediction prediction;
  prediction.plan.gpus = 64;
  prediction.time.iteration_s = 1;
  prediction.time.interval_s[1] = 1.1;
  const auto words = [&] {
    std::string all;
    for (const NumberOrigin& origin : number_origins(profile, prediction)) all += origin.words;
    return all;
  };
  EXPECT_THAT(words(), HasSubstr("3 here"));
  EXPECT_THAT(words(), Not(HasSubstr("the interval allows for")));
  EXPECT_THAT(words(), Not(HasSubstr("what the scale adds")));
  prediction.time.scale_half_width = 0.02;
  EXPECT_THAT(words(), HasSubstr("so the interval allows for"));
  EXPECT_THAT(words(), HasSubstr("were off, and what the scale adds"));
}

TEST(Predict, SaysWhereItsNumbersComeFrom) {
  const Words job{"--model", "llama-2-7b", "--cluster", "p5", "--stack", "torch-compile"};
  Words many = joined(job, {"--gpus", "64"});
  const json far = predicted(many);
  EXPECT_THAT(words_about(far, "kernels"), HasSubstr("GEMMs fitted, median error"));
  EXPECT_THAT(words_about(far, "network"), HasSubstr("of that 86 % (330 to 360 of 400 GB/s"));
  EXPECT_THAT(words_about(far, "scale"), HasSubstr("3 here"));
  EXPECT_THAT(words_about(far, "scale"), HasSubstr("none of them on efa"));
  EXPECT_THAT(words_about(far, "price"), HasSubstr("AWS price lists"));
  const json node = predicted(job);
  EXPECT_EQ(words_about(node, "network"), "");
  EXPECT_EQ(words_about(node, "scale"), "");
  EXPECT_NE(words_about(node, "memory"), "");
  EXPECT_THAT(predict(job).out, HasSubstr("What this rests on"));
}

TEST(Predict, PrintsTheContractsDocument) {
  const json document = predicted(main_job({"--strategy", "yafsdp"}));
  EXPECT_EQ(document.at("schema"), "shardwright.prediction/1.0");
  const double seconds = document.at("iteration_time_s");
  EXPECT_GT(seconds, 5);
  EXPECT_LT(seconds, 10);
  EXPECT_LE(document.at("iteration_time_interval_s")[0].get<double>(), seconds);
  EXPECT_GE(document.at("iteration_time_interval_s")[1].get<double>(), seconds);
  EXPECT_EQ(document.at("interval_level"), 0.9);
  EXPECT_NEAR(document.at("tokens_per_gpu_s").get<double>(), 2048 / seconds, 1e-6);
  EXPECT_NEAR(document.at("tokens_per_s").get<double>(), 256 * 2048 / seconds, 1e-3);
  EXPECT_NEAR(document.at("mfu").get<double>(),
              document.at("model_tflops_per_gpu").get<double>() / 312, 1e-9);
  EXPECT_GT(document.at("hfu").get<double>(), document.at("mfu").get<double>());

  double sum = 0;
  for (const char* part : {"compute", "exposed_communication", "host", "optimizer"}) {
    sum += document.at("time_s").at(part).get<double>();
  }
  EXPECT_NEAR(sum, seconds, 1e-6);
  EXPECT_EQ(document.at("time_s").at("other").get<double>(), 0);
  EXPECT_EQ(document.at("regime"), "compute");
  EXPECT_EQ(document.at("host").at("regime"), "device-bound");
  for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
    EXPECT_TRUE(document.at("communication_bytes").at(kind).is_number());
  }
  const json& memory = document.at("memory");
  EXPECT_EQ(memory.at("total_bytes").get<std::int64_t>(),
            memory.at("peak_reserved_bytes").get<std::int64_t>() +
                memory.at("runtime_bytes").get<std::int64_t>());
  EXPECT_EQ(memory.at("fits").get<bool>(), memory.at("total_bytes").get<std::int64_t>() <=
                                               memory.at("usable_bytes").get<std::int64_t>());
  EXPECT_FALSE(memory.at("peak_at").get<std::string>().empty());
  std::int64_t parts = 0;
  for (const char* part : {"parameters", "master", "gradients", "optimizer", "gather_buffers",
                           "gradient_buffers", "activations", "loss", "workspace"}) {
    parts += memory.at("breakdown_bytes").at(part).get<std::int64_t>();
  }
  EXPECT_EQ(parts, memory.at("peak_allocated_bytes").get<std::int64_t>());
  EXPECT_TRUE(document.at("extrapolated").is_array());
  EXPECT_EQ(document.at("inputs").at("model"), "llama-3-70b");
  EXPECT_EQ(document.at("inputs").at("plan").at("ckpt_layers"), 20);
}

/// Half-widths that add up to that of the interval, each with what would take it away.
TEST(Predict, SaysWhichNoveltyCostsHowMuchWidth) {
  const auto axes_of = [](const json& document) {
    std::map<std::string, double> axes;
    double squares = 0;
    for (const json& novelty : document.at("novelty")) {
      const double adds = novelty.at("adds");
      axes[novelty.at("axis")] = adds;
      squares += adds * adds;
      EXPECT_FALSE(novelty.at("class").get<std::string>().empty());
      EXPECT_FALSE(novelty.at("measure").get<std::string>().empty());
    }
    const json& interval = document.at("iteration_time_interval_s");
    EXPECT_NEAR(std::sqrt(squares),
                std::log(interval[1].get<double>() / interval[0].get<double>()) / 2, 1e-3);
    return axes;
  };
  const auto known = axes_of(predicted(small({"--stack", "torch-eager", "--micro-batch", "4"})));
  EXPECT_GT(known.at("source"), 0.05);
  for (const char* axis : {"gpu", "framework", "size", "host", "scale"})
    EXPECT_FALSE(known.contains(axis)) << axis;
  const json unknown = predicted({"--model", "llama-2-7b", "--cluster", "mi300x-8x400", "--gpus",
                                  "16", "--stack", "hf-trainer", "--lora", "16"});
  const auto axes = axes_of(unknown);
  for (const char* axis : {"source", "gpu", "framework"}) EXPECT_TRUE(axes.contains(axis)) << axis;
  EXPECT_GT(axes.at("gpu"), 2 * axes.at("source"));
  EXPECT_THAT(words_about(unknown, "interval"),
              HasSubstr("rates of mi300x are estimates: without that"));
}

TEST(Predict, SaysInWordsWhatTheJsonSays) {
  const std::string text = predict(main_job()).out;
  expect_says(text, {"llama-3-70b on 256 x a100-80g", "90 % interval", "of 312 TFLOP/s dense bf16",
                     "exposed communication", "peak allocated", "to spare"});
}

TEST(Predict, SaysWhenTheGpusAreAPartOfANode) {
  EXPECT_THAT(predict(small({"--gpus", "7"})).out,
              HasSubstr("\na part of one node: 7 of its 8 GPUs, with nothing beside them\n"));
  for (const char* whole : {"8", "16", "1"})
    EXPECT_THAT(predict(small({"--gpus", whole})).out, Not(HasSubstr("a part of one node")));
}

TEST(Predict, PutsStrategiesSideBySide) {
  const json document = predicted(main_job({"--strategy", "yafsdp,fsdp1,fsdp2"}));
  EXPECT_EQ(document.at("schema"), "shardwright.prediction/1.0");
  ASSERT_EQ(document.at("predictions").size(), 3U);
  const json alone = predicted(main_job({"--strategy", "fsdp1"}));
  EXPECT_EQ(document.at("predictions")[1], alone);
  EXPECT_NEAR(document.at("time_saved_by_first")[1].get<double>(),
              1 - document.at("predictions")[0].at("iteration_time_s").get<double>() /
                      alone.at("iteration_time_s").get<double>(),
              1e-12);
  const std::string text = predict(main_job({"--strategy", "yafsdp,fsdp1,fsdp2"})).out;
  EXPECT_THAT(text, HasSubstr("time yafsdp saves"));
}

TEST(Predict, ExplainsWhatBoundsTheStepAndWhatOneChangeBuys) {
  const json explanation =
      predicted(main_job({"--strategy", "yafsdp", "--explain"})).at("explanation");
  ASSERT_EQ(explanation.at("parts").size(), 4U);
  // 16 to 24 bytes a parameter beside what is predicted, and all that the rule leaves out.
  const json& thumb = explanation.at("rule_of_thumb");
  const json memory = predicted(main_job({"--strategy", "yafsdp"})).at("memory");
  double left_out = 0;
  for (const auto& [name, held] : thumb.at("left_out_bytes").items())
    left_out += held.get<double>();
  EXPECT_NEAR(thumb.at("predicted_states_bytes").get<double>() + left_out,
              memory.at("total_bytes").get<double>(),
              0.02 * memory.at("total_bytes").get<double>());
  EXPECT_EQ(thumb.at("words").size(), 2U);
  EXPECT_EQ(explanation.at("parts")[1].at("part"), "backward");
  EXPECT_EQ(explanation.at("parts")[1].at("bound_by"), "communication");
  // What somebody can do first: of the plan, of the machine, other software last; the best first.
  double previous = 1e9;
  std::size_t kind = 0;
  const Words kinds{"plan", "hardware", "software"};
  for (const json& change : not_empty(explanation.at("changes"))) {
    while (change.at("of") != kinds[kind]) {
      ASSERT_LT(++kind, kinds.size()) << change.at("of");
      previous = 1e9;
    }
    EXPECT_LE(change.at("tokens_per_s_gain").get<double>(), previous);
    previous = change.at("tokens_per_s_gain");
  }
  EXPECT_EQ(kind, 2U);
  const ProgramResult text = predict(main_job({"--strategy", "yafsdp,fsdp2", "--explain"}));
  expect_says(text.out, {"is bound by communication", "twice the NIC bandwidth",
                         "bf16 gradient reduction", "Other software: "});
  EXPECT_THAT(text.out, Not(HasSubstr("in software, ")));
}

// Columns that compare strategies name their software, and what is foreign to the framework says
// so.
TEST(Predict, ColumnsNameTheirSoftware) {
  const ProgramResult text = predict({"--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus",
                                      "16", "--strategy", "yafsdp,fsdp2,distributed-optimizer"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("YaFSDP on torch-compile"), HasSubstr("FSDP2 on"),
                              HasSubstr("Megatron on torch-compile"),
                              HasSubstr("--stack megatron-core prices Megatron itself")));
  // What holds of one column is not said of all.
  EXPECT_THAT(text.out, HasSubstr("Extrapolated (distributed-optimizer): "));
  // FSDP2 with tensor parallelism stays in PyTorch.
  const json tp = predicted({"--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "16",
                             "--strategy", "fsdp2", "--tp", "2"});
  EXPECT_EQ(tp.at("inputs").at("plan").at("stack"), "torch-compile");
}

TEST(Predict, RanksThatVaryTakeLongerAndSaySo) {
  const Words flags = small({"--gpus", "16", "--jitter", "0.03"});
  const json document = predicted(flags);
  const json& jitter = document.at("jitter");
  EXPECT_TRUE(jitter.at("settled").get<bool>());
  EXPECT_GT(jitter.at("slowdown").get<double>(), 0);
  EXPECT_LT(jitter.at("slowdown").get<double>(), 0.15);
  EXPECT_NEAR(
      jitter.at("iteration_time_s").get<double>(),
      document.at("iteration_time_s").get<double>() * (1 + jitter.at("slowdown").get<double>()),
      1e-9);
  EXPECT_GT(jitter.at("waiting_s").get<double>(), 0);
  EXPECT_EQ(predicted(flags).at("jitter"), jitter);  // deterministic
  const json none = predicted(small({"--gpus", "16", "--jitter", "0"})).at("jitter");
  EXPECT_EQ(none.at("slowdown"), 0);
  EXPECT_FALSE(predicted(small()).contains("jitter"));
  EXPECT_THAT(predict(flags).out, HasSubstr("kernels that vary by 3.0 %"));
  expect_error(predict(small({"--jitter", "2"})), 3, "--jitter is 2");
  // Clocks that differ add up from kernel to kernel; what differs from run to run does not.
  const auto waiting = [](const char* of_rank) {
    return predicted(small({"--gpus", "16", "--jitter", "0.03", "--rank-jitter", of_rank}))
        .at("jitter")
        .at("exposed_s")
        .get<double>();
  };
  EXPECT_GT(waiting("0"), 0);
  EXPECT_GT(waiting("0.03"), waiting("0"));
  expect_error(predict(small({"--jitter", "0.02", "--rank-jitter", "0.03"})), 2,
               "--rank-jitter is 0.03, expected at most --jitter, 0.02");
}

TEST(Predict, JitterIsEachPlansOwnAndRanksHaveNoneWithoutIt) {
  expect_error(predict(small({"--rank-jitter", "0.03"})), 2, "expected at most --jitter, 0");
  const json both = predicted(small({"--strategy", "ddp,yafsdp", "--jitter", "0.03"}));
  for (const json& one : both.at("predictions"))
    EXPECT_NEAR(one.at("jitter").at("iteration_time_s"), one.at("iteration_time_s"),
                0.15 * one.at("iteration_time_s").get<double>());
}

TEST(Predict, StagesOfAPipelineThatVaryTakeLongerAndSaySo) {
  const auto varied = [](const char* spread) {
    return small(
        {"--gpus", "16", "--tp", "2", "--pp", "2", "--grad-accum", "8", "--jitter", spread});
  };
  const json none = predicted(varied("0"));
  EXPECT_EQ(none.at("jitter").at("slowdown"), 0);
  EXPECT_EQ(none.at("jitter").at("iteration_time_s"), none.at("iteration_time_s"));
  const json some = predicted(varied("0.03")).at("jitter");
  EXPECT_GT(some.at("slowdown").get<double>(), 0);
  EXPECT_LT(some.at("slowdown").get<double>(), 0.15);
  EXPECT_GT(some.at("waiting_s").get<double>(), 0);
  EXPECT_GT(some.at("bubble_s").get<double>(), 0);
  EXPECT_GT(predicted(varied("0.1")).at("jitter").at("slowdown"), some.at("slowdown"));
  EXPECT_EQ(predicted(varied("0.03")).at("jitter"), some);  // deterministic
  EXPECT_THAT(predict(varied("0.03")).out, HasSubstr("longer for other stages"));
}

// As run trains them.
TEST(Predict, AStageMayHoldTheEmbeddingOrTheHeadAlone) {
  const auto staged = [](const char* gpus, const char* pp) {
    return small({"--stack", "native", "--gpus", gpus, "--pp", pp, "--grad-accum", "34"});
  };
  EXPECT_GT(predicted(staged("272", "34"))["iteration_time_s"].get<double>(), 0);
  const ProgramResult none = predict(staged("280", "35"));
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.err, HasSubstr("pp times virtual_stages is 35, more than the 32 layers"));
}

TEST(Predict, StillPredictsWhatDoesNotFit) {
  const Words flags{"--model", "llama-3.1-405b", "--cluster", "dgx-h100"};
  const json document = predicted(flags);
  EXPECT_FALSE(document.at("memory").at("fits").get<bool>());
  const ProgramResult text = predict(flags);
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("too much"));
  const std::size_t verdict = text.out.find("Does not fit: a GPU would need");
  EXPECT_LT(verdict, text.out.find("iteration time"));
  EXPECT_THAT(predict(small()).out, Not(HasSubstr("Does not fit")));
}

// Sums of nanoseconds end after 292 years: a network of 1e-20 was faster than a real one.
TEST(Predict, ATimeBeyondWhatIsCountedIsRefused) {
  const Words job{"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16", "--json"};
  const auto with_share = [&](const char* share) {
    Words flags = joined(job, {"--set", fmt::format("cluster.nic_efficiency={}", share)});
    return predict(flags);
  };
  double before = 0;
  for (const char* share : {"0.9", "1e-3", "1e-6"}) {
    const ProgramResult result = with_share(share);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const double time = json::parse(result.out).at("iteration_time_s");
    EXPECT_GT(time, before) << share;
    before = time;
  }
  for (const char* share : {"1e-12", "1e-16", "1e-20", "1e-300"}) {
    const ProgramResult refused = with_share(share);
    EXPECT_EQ(refused.exit_code, 3) << share << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("a rate or an efficiency of the cluster"));
  }
}

TEST(Predict, AGpuTooSmallForTheRuntimeHoldsNothing) {
  expect_says(output_of(predict(small({"--set", "gpu.memory_bytes=1000000"}))), {"Does not fit"});
}

TEST(Predict, ModelsWithExpertsRunOnTheStackThatDividesThem) {
  const json document =
      predicted({"--model", "qwen3-30b-a3b", "--cluster", "dgx-h100", "--gpus", "64"});
  EXPECT_EQ(document.at("inputs").at("plan").at("stack"), "megatron-core");
}

TEST(Predict, APathIsNeverObeyedByTheTerminal) {
  const std::filesystem::path folder = temp_path("escape");
  std::filesystem::create_directories(folder);
  const std::filesystem::path config = folder / "a\x1b[31mb.json";
  std::ofstream(config) << R"({"model_type": "llama", "hidden_size": 1024,
    "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16,
    "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5})";
  const Words flags{"--model", config.string(), "--cluster", "dgx-h100", "--gpus", "8"};
  for (const char* strategies : {"yafsdp", "yafsdp,fsdp2"}) {
    Words all = joined(flags, {"--strategy", strategies});
    const ProgramResult result = predict(all);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
    EXPECT_THAT(result.out, HasSubstr("a [31mb.json on 8 x h100-80g"));
  }
}

TEST(Predict, WritesATraceThatTheCheckerAccepts) {
  for (const std::string strategy : {"yafsdp", "fsdp1", "fsdp2", "zero3", "hsdp", "ddp"}) {
    const std::string path = temp_path("trace_" + strategy + ".json");
    expect_end(
        predict({"--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--gpus", "16", "--strategy",
                 strategy, "--trace", path, "--grad-accum", "2", "--stack", "torch-eager"}),
        0, {path});
    std::ifstream in(path);
    const json trace = json::parse(in);
    std::int64_t slices = 0, flows = 0, counters = 0;
    for (const json& event : not_empty(trace.at("traceEvents"))) {
      slices += event.at("ph") == "X";
      flows += event.at("ph") == "s";
      counters += event.at("ph") == "C";
    }
    EXPECT_GT(slices, 1'000) << strategy;
    EXPECT_GT(counters, 100) << strategy;
    EXPECT_EQ(flows > 30, strategy != "ddp") << strategy << " " << flows;
    if (std::filesystem::exists("/usr/bin/python3")) {
      const ProgramResult checked = run_program({SHARDWRIGHT_SCRIPTS "/check_trace", path});
      EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
    }
  }
}

TEST(Predict, TokensAreToldAsAWholeRunBesideItsSteps) {
  const Words flags = small({"--strategy", "fsdp2", "--gpus", "64", "--tokens", "1e12"});
  const json document = predicted(flags);
  const json& run = document.at("whole_run");
  const double ideal = 1e12 / document.at("tokens_per_s").get<double>() / 86400;
  EXPECT_NEAR(run.at("step_only").at("days").get<double>(), ideal, 1e-9 * ideal);
  EXPECT_GT(run.at("days").get<double>(), ideal);
  EXPECT_LT(run.at("days_interval")[0].get<double>(), run.at("days"));
  EXPECT_NEAR(run.at("cost_usd").get<double>(), run.at("gpu_hours").get<double>() * 3.99, 1);
  EXPECT_THAT(predict(flags).out, HasSubstr("as published runs went"));
  EXPECT_FALSE(predicted(small()).contains("whole_run"));
}

TEST(Predict, AWholeRunTakesPricesThatAreGivenOrImported) {
  const Words goal{"--strategy", "fsdp2", "--gpus", "64", "--tokens", "1e12"};
  const auto usd_an_hour = [&](const Words& prices) {
    Words flags = joined(small(goal), prices);
    const json document = predicted(flags);
    const json& run = document.at("whole_run");
    return run.at("cost_usd").get<double>() / run.at("gpu_hours").get<double>();
  };
  const std::string path = temp_path("prices.json");
  std::ofstream(path) << R"({"schema": "shardwright.prices/1.0", "date": "2026-11-22", "gpus": )"
                         R"({"h100-80g": {"on-demand": {"usd_per_gpu_hour": 2.5}}}})";
  EXPECT_NEAR(usd_an_hour({"--prices", path}), 2.5, 1e-9);
  EXPECT_NEAR(usd_an_hour({"--prices", path, "--price", "dgx-h100=2"}), 2, 1e-9);
  EXPECT_NEAR(usd_an_hour({"--price", "h100-80g=3", "--price", "p5=7"}), 3, 1e-9);
  const auto refused = [&](const Words& flags) { return predict(small(flags)); };
  EXPECT_EQ(refused({"--price", "h100-80g=3"}).exit_code, 2);
  EXPECT_THAT(refused({"--price", "h100-80g=3"}).err, HasSubstr("--tokens is missing"));
  EXPECT_EQ(refused({"--tokens", "1e12", "--price", "h1000=3"}).exit_code, 3);
}

TEST(Predict, NamesTheSoftwareAndWhatItWasCheckedOn) {
  EXPECT_THAT(predict(small()).out, HasSubstr("framework torch-compile, checked against"));
  EXPECT_THAT(predict(small({"--stack", "native"})).out, HasSubstr("has never run on a GPU"));
}

TEST(PlanFlags, HaveSensibleDefaults) {
  const json plan = plan_of(small());
  expect_has(plan, R"({"strategy": "yafsdp", "gpus": 8, "seq_len": 4096})"_json);
  EXPECT_EQ(plan.at("stack"), "torch-compile");  // whose steps on GPUs others have published
  EXPECT_EQ(plan_of({"--model", "gpt2", "--cluster", "host"}).at("stack"), "native");
  EXPECT_EQ(plan_of({"--model", "gpt2", "--cluster", "host", "--gpus", "4", "--tp", "2", "--pp",
                     "2", "--set", "gpu.sm_count=4"})
                .at("stack"),
            "native");
  EXPECT_EQ(plan.at("recompute"), "none");
  EXPECT_EQ(plan_of(small({"--strategy", "single"})).at("gpus"), 1);
  EXPECT_EQ(plan_of({"--model", "gpt2", "--cluster", "dgx-h100"}).at("seq_len"), 1024);
}

TEST(PlanFlags, SetEveryKnob) {
  const json plan = plan_of(small({
      "--gpus",         "32",   "--seq-len",      "4096",        "--micro-batch", "2",
      "--grad-accum",   "3",    "--strategy",     "hsdp",        "--shard-group", "16",
      "--ckpt-layers",  "all",  "--recompute",    "swiglu,norm", "--param-dtype", "fp32",
      "--reduce-dtype", "bf16", "--moment-dtype", "bf16",        "--buffers",     "3",
      "--prefetch",     "2",    "--attention",    "eager",       "--stack",       "torch-compile",
  }));
  EXPECT_EQ(plan, R"({"strategy": "hsdp", "gpus": 32, "shard_group": 16,
      "seq_len": 4096, "micro_batch": 2, "grad_accum": 3, "ckpt_layers": 32,
      "ckpt_stride": 1, "recompute": "norm,swiglu", "param_dtype": "fp32",
      "reduce_dtype": "bf16", "master_dtype": "fp32", "moment_dtype": "bf16", "buffers": 3,
      "prefetch": 2, "attention": "eager", "offload": "none", "stack": "torch-compile"})"_json);
}

TEST(PlanFlags, UnderstandCheckpointing) {
  EXPECT_EQ(plan_of(small({"--ckpt-layers", "7"})).at("recompute"), "full");
  EXPECT_EQ(plan_of(small({"--ckpt-layers", "all"})).at("ckpt_layers"), 32);
  EXPECT_EQ(plan_of(small({"--recompute", "selective-op"})).at("ckpt_layers"), 32);
  const json none = plan_of(small({"--recompute", "full", "--ckpt-layers", "0"}));
  EXPECT_EQ(none.at("recompute"), "none");
  EXPECT_EQ(none.at("ckpt_layers"), 0);
}

TEST(PlanFlags, StartFromAPlanFileAndChangeWhatIsGiven) {
  PlanDocument document;
  document.model = "llama-2-13b";
  document.cluster = "dgx-a100-80g";
  document.plan.strategy = Strategy::kFsdp2;
  document.plan.gpus = 16;
  document.plan.micro_batch = 4;
  document.plan.ckpt_layers = 10;
  document.plan.stack = "torch-eager";
  const std::string path = temp_path("plan.json");
  write_plan(path, document);

  const json as_is = predicted({"--plan", path});
  expect_has(as_is.at("inputs"), R"({"model": "llama-2-13b", "cluster": "dgx-a100-80g",
        "plan": {"strategy": "fsdp2", "ckpt_layers": 10}})"_json);

  const json changed = predicted({"--plan", path, "--model", "llama-2-7b", "--micro-batch", "1",
                                  "--recompute", "selective-op", "--stack", "native"});
  EXPECT_EQ(changed.at("inputs").at("model"), "llama-2-7b");
  EXPECT_EQ(changed.at("inputs").at("cluster"), "dgx-a100-80g");
  const json& plan = changed.at("inputs").at("plan");
  expect_has(plan, R"({"gpus": 16, "micro_batch": 1, "recompute": "selective-op",
        "ckpt_layers": 10, "stack": "native"})"_json);
}

TEST(PlanFlags, RefuseMoreAheadThanBuffersHold) {
  expect_error(predict(small({"--buffers", "2", "--prefetch", "5"})), 3,
               "prefetch is 5, but 2 buffers hold at most 1 ahead");
  EXPECT_EQ(plan_of(small({"--buffers", "6", "--prefetch", "5"})).at("prefetch"), 5);
}

TEST(PlanFlags, ReadNumbersAsPeopleWriteThem) {
  EXPECT_EQ(plan_of(small({"--seq-len", "2k"})).at("seq_len"), 2048);
}

TEST(Predict, RequireFitEndsWithItsOwnCode) {
  const Words large{"--model", "llama-3-70b", "--cluster",  "dgx-h100",
                    "--gpus",  "8",           "--strategy", "ddp"};
  EXPECT_EQ(predict(large).exit_code, 0);
  Words strict = joined(large, {"--require-fit"});
  EXPECT_EQ(predict(strict).exit_code, 4);
  EXPECT_EQ(predict(small({"--require-fit"})).exit_code, 0);
}

TEST(Predict, NotesWhatTheConfigurationSaysAndTheAnswerDoesNotContain) {
  const Words gpt{"--model", "gpt2", "--cluster", "dgx-h100"};
  EXPECT_NE(predict(gpt).err.find("dropout is not modelled"), std::string::npos);
  EXPECT_EQ(predict(small({})).err, "");
}

TEST(PlanFlags, OverrideValuesOfTheProfile) {
  const double before = predicted(main_job()).at("iteration_time_s");
  const json after = predicted(
      main_job({"--set", "cluster.nic_efficiency=0.5", "--set", "gpu.peak_bf16_flops=3.12e14"}));
  EXPECT_GT(after.at("iteration_time_s").get<double>(), 1.2 * before);
  EXPECT_EQ(after.at("inputs").at("set").size(), 2U);
}

TEST(PlanFlags, RefuseBadValuesInOneSentence) {
  expect_error(predict({}), 2, "--model is missing");
  expect_error(predict({"--model", "llama-2-7b"}), 2, "--cluster is missing");
  expect_error(predict({"--model", "lama-2-7b", "--cluster", "dgx-h100"}), 3, "llama-2-7b");
  expect_error(predict({"--model", "llama-2-7b", "--cluster", "dgx-h10"}), 3, "dgx-h100");
  expect_error(predict(small({"--strategy", "yafsdp3"})), 3, "did you mean 'yafsdp'");
  expect_error(predict(small({"--strategy", "yafsdp,yafsdp"})), 3, "twice");
  expect_error(predict(small({"--strategy", "yafsdp,"})), 3, "--strategy is ''");
  expect_error(predict(small({"--gpus", "0"})), 3, "--gpus is 0");
  expect_error(predict(small({"--gpus", "12"})), 3, "gpus is 12, expected a multiple of the 8");
  expect_error(predict(small({"--gpus", "many"})), 2, "--gpus is 'many'");
  expect_error(predict(small({"--seq-len", "-5"})), 3, "--seq-len is -5");
  expect_error(predict(small({"--micro-batch", "99999999999999999999"})), 3, "--micro-batch");
  expect_error(predict(small({"--ckpt-layers", "33"})), 3, "ckpt_layers is 33, expected 0 to 32");
  expect_error(predict(small({"--ckpt-layers", "some"})), 3, "--ckpt-layers is 'some'");
  expect_error(predict(small({"--recompute", "none", "--ckpt-layers", "3"})), 3,
               "recompute is none");
  expect_error(predict(small({"--recompute", "everything"})), 3, "--recompute is 'everything'");
  expect_error(predict(small({"--reduce-dtype", "fp16"})), 3, "--reduce-dtype is 'fp16'");
  expect_error(predict(small({"--attention", "flash3"})), 3, "did you mean 'flash'");
  expect_error(predict(small({"--stack", "jax"})), 3, "jax");
  expect_error(predict(small({"--set", "cluster.nope=1"})), 3, "cluster.nope");
  expect_error(predict(small({"--set", "cluster.nic_efficiency=fast"})), 3, "fast");
  expect_error(predict(small({"--shard-group", "3", "--strategy", "hsdp"})), 3, "shard_group is 3");
  expect_error(predict(small({"--plan", "/nowhere.json"})), 3, "/nowhere.json");
  expect_error(predict(small({"--trace", "/nowhere/trace.json"})), 3, "/nowhere/trace.json");
}

}  // namespace
}  // namespace shardwright::cli
