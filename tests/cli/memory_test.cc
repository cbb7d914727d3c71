// SPDX-License-Identifier: Apache-2.0

#include "cli/memory/seen_memory.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

/// With the zeros that are in it.
template <std::size_t N>
std::string raw(const char (&text)[N]) {
  return {text, N - 1};
}

constexpr Bytes kGib = Bytes{1} << 30;

std::string whole_number(std::uint64_t value) {
  std::string bytes = "\x8a\x08";
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

/// By the instructions of protocol 2.
std::string pickle_of(const json& value) {
  std::string inside;
  if (value.is_boolean()) return value.get<bool>() ? "\x88" : "\x89";
  if (value.is_number()) return whole_number(value.get<std::uint64_t>());
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return "X" + whole_number(text.size()).substr(2, 4) + text;
  }
  if (value.is_array()) {
    for (const json& item : value) inside += pickle_of(item);
    return "](" + inside + "e";
  }
  for (const auto& [key, item] : value.items()) inside += pickle_of(key) + pickle_of(item);
  return "}(" + inside + "u";
}

/// Two blocks at the end; one of 3 GiB was freed before, and 4 GiB more refused.
std::string snapshot() {
  const auto frame = [](const char* file, int line, const char* name) {
    return json{{"filename", file}, {"line", line}, {"name", name}};
  };
  const auto block = [&](Bytes address, Bytes size, const char* state) {
    return json{
        {"address", address},
        {"size", size},
        {"state", state},
        {"frames",
         {frame("/x/torch/nn/linear.py", 7, "forward"), frame("/a/model.py", 7, "forward")}}};
  };
  const auto event = [&](const char* action, Bytes address, Bytes size) {
    return json{{"action", action},    {"addr", address},
                {"size", size},        {"stream", 0},
                {"device_free", kGib}, {"frames", json::array({frame("/a/loss.py", 9, "loss")})}};
  };
  const json segment{
      {"device", 0},
      {"address", 1000},
      {"total_size", 8 * kGib},
      {"is_expandable", false},
      {"blocks",
       {block(1000, 2 * kGib, "active_allocated"), block(1000 + 2 * kGib, kGib, "active_allocated"),
        block(1000 + 3 * kGib, 5 * kGib, "inactive")}}};
  // Asked for; the allocator counts blocks of 512 bytes.
  const json events{event("alloc", 1000, 2 * kGib),
                    event("alloc", 5000, 3 * kGib - 100),
                    event("free_requested", 5000, 3 * kGib - 100),
                    event("free_completed", 5000, 3 * kGib - 100),
                    event("alloc", 1000 + 2 * kGib, kGib),
                    event("oom", 0, 4 * kGib)};
  return "\x80\x02" +
         pickle_of(
             {{"segments", json::array({segment})}, {"device_traces", json::array({events})}}) +
         ".";
}

TEST(SeenMemory, ASnapshotIsWalkedBackToItsPeak) {
  const SeenMemory seen = read_snapshot(snapshot(), "x");
  EXPECT_EQ(seen.reserved, 8 * kGib);
  EXPECT_EQ(seen.allocated, 3 * kGib);
  EXPECT_EQ(seen.peak_allocated, 5 * kGib);
  EXPECT_EQ(seen.refused, 4 * kGib);
  EXPECT_EQ(seen.free, kGib);
  ASSERT_EQ(seen.largest.size(), 2U);
  EXPECT_EQ(seen.largest[0].where, "loss.py:9 loss");
  EXPECT_EQ(seen.largest[0].bytes, 3 * kGib);
  EXPECT_EQ(seen.largest[1].where, "model.py:7 forward");
  EXPECT_EQ(seen.largest[1].bytes, 2 * kGib);
}

std::string snapshot_refusal(const std::string& bytes) {
  return refusal_of([&] { read_snapshot(bytes, "x.pickle"); });
}

TEST(SeenMemory, APickleRunsNothingAndNoLengthIsBelieved) {
  // os.system("true"), as pickle.dumps writes a __reduce__.
  EXPECT_THAT(snapshot_refusal("\x80\x02"
                               "cposix\nsystem\n(X\x04" +
                               std::string(3, '\0') + "truetR."),
              HasSubstr("names 'posix.system', which is not data, and is not run"));
  EXPECT_THAT(snapshot_refusal(raw("\x80\x04\x8c\x02os\x8c\x06system\x93.")),
              HasSubstr("'os.system'"));
  EXPECT_THAT(snapshot_refusal(raw("\x80\x02X\xff\xff\xff\x7f")), HasSubstr("ends too early"));
  EXPECT_THAT(snapshot_refusal("\x80\x02"), HasSubstr("ends too early"));
  // A memo of 2^31 places.
  EXPECT_THAT(snapshot_refusal("\x80\x02]r\xff\xff\xff\x7f."), HasSubstr("too many objects"));
  for (const std::string damaged : {"\x80\x02s.",
                                    "\x80\x02K\x01K\x02"
                                    "a.",
                                    "\x80\x02h\x05.", "\x80\x09."})
    EXPECT_THAT(snapshot_refusal(damaged), HasSubstr("x.pickle: the pickle is damaged: "));
}

/// {"segments": [{KEY: VALUE, ..., "blocks": [BLOCK]}]}, the last of both `times` times.
std::string shared_snapshot(const std::string& segment, const std::string& block, int times) {
  const auto text = [](const std::string& word) {
    return std::string("\x8c") + static_cast<char>(word.size()) + word;
  };
  const std::string again(static_cast<std::size_t>(times) - 1, '2');  // DUP
  return "\x80\x04}(" + text("segments") + "](}(" + segment + text("blocks") + "](" + block +
         again + "eu" + again + "eu.";
}

TEST(SeenMemory, FewBytesCannotNameWorkWithoutEnd) {
  // 10^10 blocks in 200 KB.
  EXPECT_THAT(snapshot_refusal(shared_snapshot("", "}", 100'000)), HasSubstr("names more than"));
  // A dictionary of 10^6 entries that is looked into 10^5 times.
  std::string entries = "}(";
  for (int i = 0; i < 1'000'000; ++i) entries += raw("K\x00K\x00");
  EXPECT_EQ(snapshot_refusal(shared_snapshot("", entries + "u", 300)), "accepted");
  const auto block_with_frames = [](std::size_t frames) {
    return "}(\x8c\x05state\x8c\x10"
           "active_allocated\x8c\x06"
           "frames](}" +
           std::string(frames, '2') + "eu";
  };
  // A stack of 10^5 frames that every block shares is looked at once.
  EXPECT_EQ(snapshot_refusal(shared_snapshot("", block_with_frames(100'000), 300)), "accepted");
  // Below a kilobyte: as many segments, blocks of each and frames of these. Where nothing is shared
  // a file has more bytes than is looked at.
  EXPECT_THAT(snapshot_refusal(shared_snapshot("", block_with_frames(250), 250)),
              HasSubstr("names more than"));
  EXPECT_EQ(snapshot_refusal(shared_snapshot("", block_with_frames(250), 60)), "accepted");
}

TEST(SeenMemory, SizesThatNoDeviceHasAreRefused) {
  const std::string total = "\x8c\x0atotal_size";
  EXPECT_THAT(
      snapshot_refusal(shared_snapshot(total + whole_number(std::uint64_t{1} << 62), "}", 1)),
      HasSubstr("total_size is 4611686018427387904, expected 0 to"));
  EXPECT_THAT(snapshot_refusal(shared_snapshot(total + whole_number(~std::uint64_t{0}), "}", 1)),
              HasSubstr("total_size is -1"));
  EXPECT_THAT(
      snapshot_refusal(shared_snapshot(total + whole_number(std::uint64_t{1} << 50), "}", 2)),
      HasSubstr("add up to more"));
  EXPECT_EQ(snapshot_refusal(shared_snapshot("\x8c\x07"
                                             "address" +
                                                 whole_number(INT64_MAX),
                                             "}(\x8c\x04sizeK\x01u", 3)),
            "accepted");
}

const char* const kMessage =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total "
    "capacity of "
    "79.10 GiB of which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.80 GiB "
    "memory in "
    "use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 5.50 GiB is reserved by "
    "PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting ...";

TEST(SeenMemory, MessagesOfOldAndNewReleasesAreRead) {
  const auto seen = find_message(std::string("step 1\n") + kMessage + "\nend");
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->refused, static_cast<Bytes>(2.5 * kGib));
  EXPECT_EQ(seen->capacity, static_cast<Bytes>(79.10 * kGib));
  EXPECT_EQ(seen->free, static_cast<Bytes>(1.25 * kGib));
  EXPECT_EQ(seen->in_use, static_cast<Bytes>(77.8 * kGib));
  EXPECT_EQ(seen->allocated, 70 * kGib);
  EXPECT_EQ(seen->reserved, static_cast<Bytes>(75.5 * kGib));
  EXPECT_EQ(seen->needed(), static_cast<Bytes>(77.8 * kGib) + static_cast<Bytes>(2.5 * kGib));
  const auto old = find_message(
      "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total "
      "capacity; 13.20 GiB "
      "already allocated; 5.75 MiB free; 13.50 GiB reserved in total by PyTorch)");
  ASSERT_TRUE(old);
  EXPECT_EQ(old->refused, Bytes{20} << 20);
  EXPECT_EQ(old->capacity, static_cast<Bytes>(14.76 * kGib));
  EXPECT_EQ(old->allocated, static_cast<Bytes>(13.2 * kGib));
  EXPECT_EQ(old->reserved, static_cast<Bytes>(13.5 * kGib));
  EXPECT_EQ(old->free, static_cast<Bytes>(5.75 * (1 << 20)));
  // PyTorch 2.1's spelling.
  const auto misspelt = find_message(
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacty of 79.15 GiB of "
      "which 1.00 GiB is free.");
  ASSERT_TRUE(misspelt);
  EXPECT_EQ(misspelt->capacity, static_cast<Bytes>(79.15 * (1 << 30)));
  EXPECT_FALSE(find_message("all is well"));
}

TEST(SeenMemory, AnAmountThatCannotBeReadIsNotTakenAsUnsaid) {
  const std::string message = kMessage;
  const auto said = [&](const std::string& amount, const std::string& instead) {
    std::string changed = message;
    changed.replace(changed.find(amount), amount.size(), instead);
    return refusal_of([&] { find_message(changed, "job.log"); });
  };
  for (const char* amount :
       {"2.50 GiB", "79.10 GiB", "1.25 GiB", "77.80 GiB", "70.00 GiB", "5.50 GiB"}) {
    EXPECT_THAT(said(amount, "1e400 GiB"), HasSubstr("job.log: the out-of-memory message says '"))
        << amount;
  }
  EXPECT_THAT(said("2.50 GiB", "2.50 GB"), HasSubstr("2.50 GB"));
  EXPECT_THAT(said("79.10 GiB", "0.00 GiB"), HasSubstr("a total capacity of 0"));
  // What a log says on other lines is of somebody else.
  EXPECT_TRUE(find_message(message + "\nten requests, of which two failed"));
}

ProgramResult import_memory(const std::string& file, const Words& flags) {
  return run_program(joined({SHARDWRIGHT_BINARY, "import-memory", file}, flags), {"LC_ALL=C"});
}

const Words kPlanOfTheRun{
    "--model", "llama-3.1-8b", "--cluster",   "dgx-h100",      "--gpus", "8",          "--seq-len",
    "8192",    "--stack",      "torch-eager", "--micro-batch", "2",      "--strategy", "fsdp2"};

TEST(ImportMemory, SaysWhatWouldHaveFitted) {
  Words flags = joined(kPlanOfTheRun, {"--json"});
  const json answer = document_of(import_memory(written("job.log", kMessage), flags));
  EXPECT_THAT(answer.at("advice")[0].get<std::string>(), HasSubstr("would have fitted"));
  const json& held = answer.at("held");
  EXPECT_FALSE(held.at("fits"));
  ASSERT_FALSE(held.at("fix").is_null());
  const double excess = held.at("needed_over_predicted");
  EXPECT_GE(excess, 1);
  EXPECT_LE(held.at("fix").at("total_bytes").get<double>() * excess,
            answer.at("capacity_bytes").get<double>() * 1.001);
}

// A fix that fits by a hair fails in every second case: what the interval of memory asks for stays
// free, as in a plan of tune.
TEST(ImportMemory, WhatWouldHaveFittedLeavesTheHeadroomOfTune) {
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total "
      "capacity of 79.11 GiB of which 2.31 GiB is free. Including non-PyTorch memory, this process "
      "has 76.79 GiB memory in use. Of the allocated memory 70.10 GiB is allocated by PyTorch, and "
      "1.90 GiB is reserved by PyTorch but unallocated.\n";
  for (const char* length : {"8192", "16384", "32768"}) {
    const json answer = document_of(import_memory(
        written("oom.txt", message),
        {"--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8", "--seq-len", length,
         "--micro-batch", "2", "--strategy", "fsdp2", "--json"}));
    const json& fix = answer.at("held").at("fix");
    ASSERT_FALSE(fix.is_null()) << length;
    EXPECT_EQ(fix.at("verdict"), "fits");
    EXPECT_LE(fix.at("total_bytes").get<double>(), 0.96 * answer.at("capacity_bytes").get<double>())
        << length;
  }
  const ProgramResult words = import_memory(
      written("oom.txt", message), {"--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus",
                                    "8", "--seq-len", "32k", "--micro-batch", "2"});
  EXPECT_THAT(words.out, HasSubstr("The job failed before its peak"));
  EXPECT_THAT(words.out, ::testing::Not(HasSubstr("null")));
}

TEST(ImportMemory, BadInputIsOneSentence) {
  const auto refused = [](const ProgramResult& result, const std::string& words) {
    EXPECT_EQ(result.exit_code, 3) << result.out;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  refused(import_memory("nowhere.pickle", {}), "nowhere.pickle");
  refused(import_memory(written("calm.log", "all is well\n"), {}), "neither a snapshot");
  refused(import_memory(written("evil.pickle", raw("\x80\x04\x8c\x02os\x8c\x06system\x93.")), {}),
          "is not run");
  refused(
      import_memory(written("far.log",
                            "CUDA out of memory. Tried to allocate 1e400 GiB. GPU 0 has a total "
                            "capacity of 79.1 GiB of which 1e400 GiB is free.\n"),
                    kPlanOfTheRun),
      "'Tried to allocate 1e400 GiB");
  refused(import_memory(written("list.pickle", "\x80\x02]."), {}), "no segments");
  expect_end(
      run_program({SHARDWRIGHT_BINARY, "import-memory", written("list.pickle", "\x80\x02].")},
                  {"LC_ALL=C", "SHARDWRIGHT_PYTHON=/nowhere/python3"}),
      5, {"reading a snapshot needs python3"});
}

TEST(ImportMemory, AGpuTooSmallForTheRuntimeHoldsNoPlan) {
  const std::string log =
      "out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 0.01 GiB of which "
      "0.00 GiB is free.";
  expect_says(output_of(import_memory(written("small.log", log), kPlanOfTheRun)),
              {"No change of one or two knobs"});
}

TEST(ExportMemorySnapshot, ItsPeakIsThePredictedOne) {
  Words flags = joined({SHARDWRIGHT_BINARY, "export"}, kPlanOfTheRun);
  const std::string out = temp_path("predicted.pickle");
  Words exported = joined(flags, {"--format", "memory-snapshot", "--out", out});
  const ProgramResult result = run_program(exported, {"LC_ALL=C"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const SeenMemory seen = read_seen_memory(out);
  Words predict = flags;
  predict[1] = "predict";
  predict.emplace_back("--json");
  const json memory = json::parse(run_program(predict, {"LC_ALL=C"}).out).at("memory");
  EXPECT_EQ(seen.peak_allocated, memory.at("peak_allocated_bytes").get<Bytes>());
  ASSERT_TRUE(seen.reserved);
  EXPECT_GE(*seen.reserved, *seen.peak_allocated);
  exported.pop_back();
  exported.pop_back();
  EXPECT_EQ(run_program(exported, {"LC_ALL=C"}).exit_code, 2);
}

}  // namespace
}  // namespace shardwright::cli
