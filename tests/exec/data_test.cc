// SPDX-License-Identifier: Apache-2.0
// Guards exec/train/data: what sequences hold, who gets them, and that no file can do harm.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>

#include "exec/train/data/dataset.h"
#include "exec/train/data/mapped_file.h"
#include "exec/train/data/sft_dataset.h"
#include "exec/train/data/token_file.h"
#include "kernels/random.h"
#include "sim/core/base/error.h"
#include "tests/support/files.h"
#include "tests/support/refusal.h"

namespace shardwright::exec {
namespace {

using shardwright::testing::get;
using shardwright::testing::refusal_of;

namespace fs = std::filesystem;

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("shardwright-data-") + test->name() + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string put(const std::string& name, std::string_view bytes) const {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return path.string();
  }

  fs::path folder_;
};

std::vector<std::int32_t> all_tokens(const TokenSource& source) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

TEST_F(DataTest, AChecksumOfAFileIsOfAllItsBytes) {
  std::string bytes(std::size_t{40} << 20, 'x');  // several parts
  bytes.front() = 'y';
  const std::string path = put("data", bytes);
  EXPECT_EQ(crc32_of_file(path, ""), crc32(bytes));
  bytes[bytes.size() / 3] = 'z';
  put("data", bytes);
  EXPECT_EQ(crc32_of_file(path, ""), crc32(bytes));
  EXPECT_EQ(crc32_of_file(put("empty", ""), ""), 0u);
  EXPECT_FALSE(refusal_of([&] { crc32_of_file(folder_ / "none", ""); }).empty());
}

TEST_F(DataTest, AChecksumOfALargeFileIsKeptWhileItsSizeAndTimeAreThose) {
  const fs::path cache = folder_ / "kept" / "sums";
  const std::string path = put("data", "a");
  fs::resize_file(path, std::size_t{65} << 20);
  const std::uint32_t first = crc32_of_file(path, cache);
  const fs::file_time_type time = fs::last_write_time(path);
  std::fstream(path, std::ios::in | std::ios::out).write("b", 1);
  fs::last_write_time(path, time);
  EXPECT_EQ(crc32_of_file(path, cache), first);
  EXPECT_NE(crc32_of_file(path, ""), first);
  fs::last_write_time(path, time + std::chrono::seconds(1));
  const std::uint32_t second = crc32_of_file(path, cache);
  EXPECT_EQ(second, crc32_of_file(path, ""));
  // Half of what is kept is as if nothing were.
  const fs::path kept = fs::directory_iterator(cache)->path();
  fs::resize_file(kept, fs::file_size(kept) - 1);
  EXPECT_EQ(crc32_of_file(path, cache), second);
  fs::resize_file(path, std::size_t{66} << 20);
  fs::last_write_time(path, time + std::chrono::seconds(1));
  EXPECT_NE(crc32_of_file(path, cache), second);
}

template <class Token>
std::string llmc_file(std::int32_t magic, std::int32_t version, const std::vector<Token>& tokens) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  return bytes.append(reinterpret_cast<const char*>(tokens.data()), sizeof(Token) * tokens.size());
}

TEST_F(DataTest, EverySourceGivesItsTokens) {
  const std::vector<std::int32_t> tokens = {0, 200, 255, 3, 77, 101, 9};
  std::string text;
  for (const std::int32_t token : tokens) text.push_back(static_cast<char>(token));
  EXPECT_EQ(all_tokens(*open_text(put("a.txt", text), 256)), tokens);

  const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
  const std::string v1 = put("a.bin", llmc_file(20240520, 1, narrow));
  EXPECT_EQ(all_tokens(*open_llmc_tokens(v1, 300)), tokens);
  const std::vector<std::uint32_t> wide = {7, 100'000, 128'255};
  const std::string v7 = put("b.bin", llmc_file(20240801, 7, wide));
  EXPECT_EQ(all_tokens(*open_llmc_tokens(v7, 128'256)),
            (std::vector<std::int32_t>{7, 100'000, 128'255}));

  for (const std::int64_t vocab : {256, 60'000, 1 << 20}) {
    const fs::path path = folder_ / fmt::format("{}.tok", vocab);
    write_token_file(path, tokens, vocab, 3);
    EXPECT_EQ(all_tokens(*open_token_file(path, vocab)), tokens) << vocab;
    EXPECT_EQ(fs::file_size(path), 48u + 3 * 4 +
                                       7 * (vocab <= 256     ? 1u
                                            : vocab <= 65536 ? 2u
                                                             : 4u));
  }
}

TEST_F(DataTest, WrongFilesAreRefusedByName) {
  const std::vector<std::uint16_t> tokens = {1, 2, 3, 4, 5};
  std::string bin = llmc_file(20240520, 1, tokens);
  const std::string cut = put("cut.bin", std::string_view(bin).substr(0, bin.size() - 2));
  EXPECT_EQ(refusal_of([&] { open_llmc_tokens(cut, 10); }),
            cut + ": the header promises 5 tokens of 2 bytes, but 8 bytes follow");
  const std::string whole = put("whole.bin", bin);
  EXPECT_EQ(refusal_of([&] { all_tokens(*open_llmc_tokens(whole, 4)); }),
            whole + ": token 3 is 4, expected 0 to 3, the vocabulary of the model");
  bin[4] = 2;
  EXPECT_NE(refusal_of([&] { open_llmc_tokens(put("v2.bin", bin), 10); }).find("version 2"),
            std::string::npos);

  const std::vector<std::int32_t> many = [] {
    std::vector<std::int32_t> values(100);
    std::iota(values.begin(), values.end(), 0);
    return values;
  }();
  write_token_file(folder_ / "t.tok", many, 256, 32);
  std::string damaged = get(folder_ / "t.tok");
  damaged[48 + 16 + 40] ^= 1;  // token 40, in the second block
  const std::string path = put("damaged.tok", damaged);
  const auto source = open_token_file(path, 256);
  std::vector<std::int32_t> first(32);
  source->read(0, first);  // the damage lies elsewhere
  EXPECT_EQ(refusal_of([&] { all_tokens(*source); }),
            path + ": the checksum of tokens 32 to 63 is wrong: the file is damaged");
  EXPECT_NE(refusal_of([&] { open_token_file(folder_ / "t.tok", 100); }).find("vocabulary of 256"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { open_text(put("a.txt", "abc"), 101); }).find("at least 256"),
            std::string::npos);
  DataOptions options{.train = put("short.txt", "abc"), .seq_len = 3, .vocab = 256};
  EXPECT_NE(
      refusal_of([&] { open_data(options); }).find("3 tokens are too few, expected at least 4"),
      std::string::npos);
}

TEST_F(DataTest, BytesAreTokensOfModelsOfBytesOnly) {
  const std::string text = put("a.txt", "abcdefgh"), line = R"({"prompt": "ab", "response": "c"})";
  const std::string jsonl = put("a.jsonl", line);
  const auto said = [](const std::string& path, std::int64_t vocab, bool bytes) {
    return refusal_of([&] {
      open_data({.train = path, .holds_out = false, .seq_len = 4, .vocab = vocab, .bytes = bytes});
    });
  };
  for (const std::string& path : {text, jsonl}) {
    EXPECT_EQ(said(path, 512, false), "accepted");
    EXPECT_NE(said(path, 513, false).find("513"), std::string::npos);
    EXPECT_EQ(said(path, 513, true), "accepted");
  }
  // What is asked before a tokenizer is applied.
  EXPECT_TRUE(is_text(text, DataFormat::kAuto));
  EXPECT_FALSE(is_text(text, DataFormat::kTokens));
  const auto holds = [&](std::string_view json) {
    return is_text(put("b.jsonl", fmt::format("\n {}\n", json)), DataFormat::kAuto);
  };
  EXPECT_TRUE(holds(line));
  EXPECT_TRUE(holds(R"({"instruction": "a", "output": "b"})"));
  EXPECT_TRUE(holds(R"({"messages": [{"role": "user", "content": "a"}]})"));
  EXPECT_TRUE(holds(R"({"text": "a"})"));
  EXPECT_FALSE(holds(R"({"prompt": [], "response": [1]})"));
  EXPECT_FALSE(holds(R"({"messages": [{"role": "user", "content": [1]}]})"));
  EXPECT_FALSE(holds(R"({"text": [1, 2]})"));
}

TEST_F(DataTest, TheFirstWrongTokenIsFoundBeforeTraining) {
  std::vector<std::uint16_t> tokens(700'000, 7);  // several pieces
  tokens[550'000] = 301;
  tokens[650'000] = 302;
  const std::string path = put("a.bin", llmc_file(20240520, 1, tokens));
  DataOptions options{.train = path, .seq_len = 4, .vocab = 300};
  EXPECT_EQ(refusal_of([&] { open_data(options); }), "accepted");
  options.checks = true;
  EXPECT_EQ(refusal_of([&] { open_data(options); }),
            path + ": token 550000 is 301, expected 0 to 299, the vocabulary of the model");
  options.vocab = 303;
  EXPECT_EQ(refusal_of([&] { open_data(options); }), "accepted");
}

// tests/data/documents.tok is what shardwright.tokens made of the lines beside it, by bytes.
TEST_F(DataTest, ATokenFileKnowsItsDocumentsAndWhatOfThemIsTrained) {
  const fs::path made = fs::path(SHARDWRIGHT_TEST_DATA) / "documents.tok";
  const SftCorpus of_lines =
      SftCorpus::load(fs::path(SHARDWRIGHT_TEST_DATA) / "documents.jsonl", 256);
  const auto source = open_token_file(made, 256);
  const SftCorpus of_tokens = SftCorpus::of(*source, "x");
  EXPECT_EQ(of_tokens.tokens(), of_lines.tokens());
  ASSERT_EQ(of_tokens.documents().size(), of_lines.documents().size());
  for (std::size_t i = 0; i < of_lines.documents().size(); ++i) {
    EXPECT_EQ(of_tokens.documents()[i].first, of_lines.documents()[i].first);
    EXPECT_EQ(of_tokens.documents()[i].continues, of_lines.documents()[i].continues);
  }
  for (std::int64_t i = 0; i < source->size(); ++i)
    EXPECT_EQ(of_tokens.counts(i), of_lines.counts(i)) << i;
  const Data data = open_data({.train = made, .holds_out = false, .seq_len = 40, .vocab = 300});
  EXPECT_TRUE(data.train->packs_documents());
  // Every bit of it is under a checksum or means something.
  const std::string whole = get(made);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] ^= 4;
    const std::string path = put("damaged.tok", damaged);
    const std::string said = refusal_of([&] { all_tokens(*open_token_file(path, 256)); });
    EXPECT_TRUE(said.starts_with(path)) << "byte " << i << ": " << said;
    const std::string cut = put("cut.tok", whole.substr(0, i));
    EXPECT_TRUE(refusal_of([&] { open_token_file(cut, 256); }).starts_with(cut)) << i;
  }
}

TEST_F(DataTest, ADocumentWithoutATrainedTokenIsNamed) {
  const std::string lines =
      "{\"prompt\": [1], \"response\": [2]}\n{\"prompt\": [1, 2, 3, 4], \"response\": [5]}\n";
  const auto corpus = std::make_shared<const SftCorpus>(SftCorpus::parse(lines, "x.jsonl", 256));
  EXPECT_EQ(make_sft_dataset(corpus, 4, 0, 2)->sequences(), 2);
  EXPECT_EQ(refusal_of([&] { make_sft_dataset(corpus, 3, 0, 2); })
                .find("x.jsonl: document 2 has 5 tokens, of which none that the loss "
                      "asks for follows another within a sequence of 3"),
            0u);
}

// Documents of 3, 1 and 4 tokens, by the file's own table and by the token that ends them.
TEST_F(DataTest, DocumentsApartBeginAnew) {
  class Known final : public TokenSource {
   public:
    explicit Known(std::vector<std::uint64_t> ends) : ends_(std::move(ends)) {}
    std::int64_t size() const override { return 8; }
    void read(std::int64_t first, std::span<std::int32_t> out) const override {
      constexpr std::int32_t kTokens[] = {5, 6, 9, 9, 1, 2, 3, 9};
      std::copy_n(kTokens + first, out.size(), out.begin());
    }
    std::string describe() const override { return "known"; }
    std::uint32_t fingerprint() const override { return 1; }
    std::span<const std::uint64_t> documents() const override { return ends_; }

   private:
    std::vector<std::uint64_t> ends_;
  };
  const auto all_of = [](std::vector<std::uint64_t> ends, DocumentEnds how, std::int64_t begin) {
    const auto data = make_clm_dataset(std::make_shared<Known>(std::move(ends)), 5, begin, 6, how);
    EXPECT_EQ(data->packs_documents(), how.apart);
    Batch batch;
    data->append(0, batch);
    return batch;
  };
  constexpr std::int32_t kNot = kIgnoreTarget;
  for (const Batch& batch : {all_of({3, 4, 8 | kGoesOn}, {.apart = true}, 0),
                             all_of({}, {.apart = true, .token = 9}, 0)}) {
    EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{0, 1, 2, 0, 0}));
    EXPECT_EQ(batch.first_keys, (std::vector<std::int32_t>{0, 0, 0, 3, 4}));
    EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{6, 9, kNot, kNot, 2}));
  }
  const Batch later = all_of({3, 4, 8}, {.apart = true}, 2);
  EXPECT_EQ(later.first_keys, (std::vector<std::int32_t>{0, 1, 2, 2, 2}));
  EXPECT_EQ(all_of({3, 4, 8}, {}, 0).targets, (std::vector<std::int32_t>{6, 9, 9, 1, 2}));
  EXPECT_NE(refusal_of([&] { all_of({}, {.apart = true}, 0); }).find("eos_token_id"),
            std::string::npos);
}

TEST_F(DataTest, FoldersAndGlobsAreTheirFilesByName) {
  fs::create_directories(folder_ / "d" / "e");
  for (const char* name : {"d/b.txt", "d/e/a.txt", "d/.hidden.txt", "d/notes.csv"})
    put(name, std::string(17, name[2]));
  const auto parts =
      data_parts((folder_ / "d").string() + "=2," + (folder_ / "d/?.txt").string() + "=1");
  ASSERT_EQ(parts.size(), 2u);
  const std::vector<std::string> found = {(folder_ / "d/b.txt").string(),
                                          (folder_ / "d/e/a.txt").string()};
  EXPECT_EQ(parts[0].files, found);
  EXPECT_EQ(parts[1].files, std::vector{found[0]});
  const Data data =
      open_data({.train = folder_ / "d", .holds_out = false, .seq_len = 8, .vocab = 256});
  EXPECT_EQ(data.train->sequences(), 4);
  EXPECT_EQ(data.files, found);
  EXPECT_NE(refusal_of([&] { data_parts((folder_ / "x*").string()); }).find("*.jsonl"),
            std::string::npos);
}

TEST_F(DataTest, AFileThatShrinksIsASentence) {
  const std::string path = put("a.txt", std::string(100'000, 'a'));
  const auto source = open_text(path, 256);
  std::vector<std::int32_t> tokens(10);
  source->read(90'000, tokens);
  fs::resize_file(path, 4096);
  EXPECT_NE(refusal_of([&] { source->read(90'000, tokens); }, ExitCode::kFailed)
                .find("was cut from 100000 to 4096 bytes"),
            std::string::npos);
}

TEST_F(DataTest, DamagedFilesDoNoHarm) {
  std::vector<std::int32_t> tokens(500);
  std::iota(tokens.begin(), tokens.end(), 0);
  write_token_file(folder_ / "t.tok", tokens, 600, 64);
  const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
  const std::string originals[] = {get(folder_ / "t.tok"), llmc_file(20240520, 1, narrow)};
  const kernels::RandomStream random{1, kernels::RandomSite::kShuffle, 0};
  std::uint64_t draws = 0;
  const auto below = [&](std::size_t bound) { return random.below(draws++, bound); };
  int refused = 0, unharmed = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bytes = originals[round % 2];
    for (std::uint64_t changes = below(4) + 1; changes > 0; --changes) {
      // Most damage goes to the header, where it can mislead.
      const std::size_t reach = below(2) == 0 ? 64 : bytes.size();
      const std::size_t at = below(reach);
      bytes[at] = static_cast<char>(below(256));
    }
    if (below(3) == 0) bytes.resize(below(bytes.size() + 1));
    const std::string path = put("x", bytes);
    const std::string said = refusal_of([&] {
      const auto source = round % 2 == 0 ? open_token_file(path, 600) : open_llmc_tokens(path, 600);
      const std::vector<std::int32_t> read = all_tokens(*source);
      for (const std::int32_t token : read) ASSERT_TRUE(token >= 0 && token < 600);
    });
    (said == "accepted" ? unharmed : refused) += 1;
    ASSERT_TRUE(said == "accepted" || said.starts_with(path)) << said;
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(unharmed, 0);  // llm.c's format has no checksums
}

TEST_F(DataTest, EveryEpochVisitsEverySequenceOnce) {
  for (const std::int64_t count : {1, 2, 3, 17, 64, 1000}) {
    const DataOrder order(7, count);
    std::vector<std::int64_t> epochs[2];
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::set<std::int64_t> seen;
      for (std::int64_t i = 0; i < count; ++i) {
        epochs[epoch].push_back(order.sequence_at(epoch * count + i));
        seen.insert(epochs[epoch].back());
      }
      EXPECT_EQ(std::ssize(seen), count);
      EXPECT_EQ(*seen.rbegin(), count - 1);
    }
    if (count > 16) {
      EXPECT_NE(epochs[0], epochs[1]);
      EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
    }
  }
}

TEST_F(DataTest, RanksShareAStepWithoutOverlapAndInAnOrderOfItsOwn) {
  const auto data = make_clm_dataset(synthetic_tokens(3, 50'000), 4, 0, 4 * 500 + 1);
  const DataOrder order(1, data->sequences());
  // Twelve sequences: one rank with six micro-batches, three ranks with two, six ranks with one.
  Batch alone = training_batch(*data, order, {2, 6, 1}, 24, 0);
  for (const std::int64_t ranks : {2, 3, 6}) {
    Batch joined;
    std::vector<Batch> parts;
    const BatchShape shape{2, 6 / ranks, ranks};
    for (std::int64_t r = 0; r < ranks; ++r) {
      parts.push_back(training_batch(*data, order, shape, 24, r));
    }
    for (std::int64_t m = 0; m < shape.micro_steps; ++m) {
      for (const Batch& part : parts) {
        joined.tokens.insert(joined.tokens.end(), part.tokens.begin() + m * 8,
                             part.tokens.begin() + (m + 1) * 8);
      }
    }
    EXPECT_EQ(joined.tokens, alone.tokens) << ranks;
  }
  const Batch eval = evaluation_batch(*data, {2, 1, 3}, 4, 495, 498, 1);
  EXPECT_EQ(std::count(eval.targets.begin(), eval.targets.end(), kIgnoreTarget), 4);
}

TEST_F(DataTest, TheEndIsHeldOutAndNeverTrainedOn) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text.push_back(static_cast<char>('a' + i % 26));
  DataOptions options{.train = put("a.txt", text), .seq_len = 16, .vocab = 256};
  const Data data = open_data(options);
  EXPECT_EQ(data.train->sequences(), (1900 - 1) / 16);
  EXPECT_EQ(data.eval->sequences(), (100 - 1) / 16);
  Batch last, held;
  data.train->append(data.train->sequences() - 1, last);
  data.eval->append(0, held);
  EXPECT_EQ(held.tokens.front(), 'a' + 1900 % 26);
  EXPECT_NE(data.train->fingerprint(), data.eval->fingerprint());
  options.eval = options.train;
  EXPECT_EQ(open_data(options).eval->sequences(), (2000 - 1) / 16);
  options.format = data_format_from("bin");
  EXPECT_NE(refusal_of([&] { open_data(options); }).find("magic number"), std::string::npos);
  EXPECT_NE(refusal_of([] { data_format_from("txt"); }).find("did you mean 'text'"),
            std::string::npos);
}

TEST_F(DataTest, ResponsesCountAndDocumentsKeepApart) {
  const std::string lines =
      "{\"prompt\": [1, 2, 3], \"response\": [4, 5]}\n\n"
      "{\"prompt\": \"a\", \"response\": \"bc\", \"source\": 1}\r\n"
      "{\"prompt\": [], \"response\": [9, 8, 7, 6, 5, 4, 3, 2, 1]}\n";
  const auto corpus = std::make_shared<const SftCorpus>(SftCorpus::parse(lines, "x.jsonl", 256));
  ASSERT_EQ(corpus->documents().size(), 3u);
  const auto data = make_sft_dataset(corpus, 7, 0, 3);
  ASSERT_EQ(data->sequences(), 2);
  constexpr std::int32_t kNot = kIgnoreTarget;
  Batch first, second;
  data->append(0, first);
  EXPECT_EQ(first.tokens, (std::vector<std::int32_t>{1, 2, 3, 4, 'a', 'b', 0}));
  EXPECT_EQ(first.targets, (std::vector<std::int32_t>{kNot, kNot, 4, 5, 'b', 'c', kNot}));
  EXPECT_EQ(first.positions, (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 0}));
  EXPECT_EQ(first.first_keys, (std::vector<std::int32_t>{0, 0, 0, 0, 4, 4, 6}));
  data->append(1, second);  // too long by one
  EXPECT_EQ(second.tokens, (std::vector<std::int32_t>{9, 8, 7, 6, 5, 4, 3}));
  EXPECT_EQ(second.targets, (std::vector<std::int32_t>{8, 7, 6, 5, 4, 3, 2}));
  EXPECT_NE(data->describe().find("1 documents are longer"), std::string::npos);
  EXPECT_NE(refusal_of([&] { make_sft_dataset(corpus, 1, 0, 1); }).find("none that the loss asks"),
            std::string::npos);
}

TEST_F(DataTest, OfAConversationTheAssistantCounts) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})";
  const auto corpus = std::make_shared<const SftCorpus>(SftCorpus::parse(line, "x.jsonl", 256));
  const std::string asked = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  const std::string said = "Yo<|im_end|>\n";
  ASSERT_EQ(corpus->tokens().size(), asked.size() + said.size());
  for (std::size_t i = 0; i < corpus->tokens().size(); ++i) {
    EXPECT_EQ(corpus->tokens()[i], (asked + said)[i]) << i;
    EXPECT_EQ(corpus->counts(static_cast<std::int64_t>(i)), i >= asked.size()) << i;
  }
}

TEST_F(DataTest, ACompletionIsAResponseAndMayBeAConversation) {
  const SftCorpus texts =
      SftCorpus::parse(R"({"prompt": "ab", "completion": "c"})", "x.jsonl", 256);
  ASSERT_EQ(texts.tokens().size(), 3U);
  EXPECT_FALSE(texts.counts(1));
  EXPECT_TRUE(texts.counts(2));
  // What the assistant said in the prompt does not count.
  const SftCorpus turns = SftCorpus::parse(
      R"({"prompt": [{"role": "assistant", "content": [1]}, {"role": "user", "content": [2]}],)"
      R"( "completion": [{"role": "assistant", "content": [3]}]})",
      "x.jsonl", 256);
  ASSERT_EQ(turns.tokens().size(), 3U);
  EXPECT_FALSE(turns.counts(0));
  EXPECT_FALSE(turns.counts(1));
  EXPECT_TRUE(turns.counts(2));
  const auto refusal = [](const std::string& line) {
    return refusal_of([&] { SftCorpus::parse(line, "x.jsonl", 256); });
  };
  EXPECT_NE(refusal(R"({"prompt": "a", "completion": "b", "response": "c"})").find("completion"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"prompt": "a", "completion": ""})").find("completion"), std::string::npos);
}

TEST_F(DataTest, MessagesMayBeTokensOrParts) {
  const std::string line = R"({"messages": [{"role": "user", "content": [7, 8]},
    {"role": "assistant", "content": [9]}, {"role": "user", "content": [{"type": "text",
    "text": "a"}, {"type": "text", "text": "b"}]}]})";
  std::string one_line = line;
  std::replace(one_line.begin(), one_line.end(), '\n', ' ');
  const SftCorpus corpus = SftCorpus::parse(one_line, "x.jsonl", 256);
  EXPECT_EQ(std::vector<std::int32_t>(corpus.tokens().begin(), corpus.tokens().begin() + 3),
            (std::vector<std::int32_t>{7, 8, 9}));
  EXPECT_TRUE(corpus.counts(2));
  EXPECT_FALSE(corpus.counts(1));
  const std::string rest(corpus.tokens().begin() + 3, corpus.tokens().end());
  EXPECT_EQ(rest, "<|im_start|>user\nab<|im_end|>\n");
}

TEST_F(DataTest, ATextCountsWhollyAndGoesOnInTheNextSequence) {
  const auto corpus = std::make_shared<const SftCorpus>(
      SftCorpus::parse(R"({"text": "abcdefgh", "meta": {"x": 1}})", "x.jsonl", 256));
  const auto data = make_sft_dataset(corpus, 3, 0, 1);
  ASSERT_EQ(data->sequences(), 3);
  Batch batch;
  for (std::int64_t i = 0; i < 3; ++i) data->append(i, batch);
  EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{'a', 'b', 'c', 'd', 'e', 'f', 'g', 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{'b', 'c', 'd', 'e', 'f', 'g', 'h',
                                                      kIgnoreTarget, kIgnoreTarget}));
}

TEST_F(DataTest, CompressedAndBinaryFilesAreNoText) {
  const auto said = [&](const std::string& content) {
    return refusal_of(
        [&] { open_data({.train = put("a.bin", content), .seq_len = 4, .vocab = 256}); });
  };
  EXPECT_NE(said("\x1f\x8b and more than enough of it").find("is compressed"), std::string::npos);
  const std::string zeros = std::string("text") + '\0' + std::string(100, 'x');
  EXPECT_NE(said(zeros).find("zero bytes"), std::string::npos);
  EXPECT_NO_THROW(open_data(
      {.train = put("a.bin", zeros), .format = DataFormat::kText, .seq_len = 4, .vocab = 256}));
}

TEST_F(DataTest, WrongDocumentsAreRefusedByLine) {
  const auto refusal = [](std::string_view text, std::int64_t vocab = 256) {
    return refusal_of([&] { SftCorpus::parse(text, "x.jsonl", vocab); });
  };
  const std::string good = "{\"prompt\": [1], \"response\": [2]}\n";
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_EQ(refusal(good + "{\"prompt\": [1]}").find("x.jsonl, line 2: response"), 0u);
  EXPECT_EQ(refusal(good + "[1]").find("x.jsonl, line 2"), 0u);
  EXPECT_EQ(refusal(good + "nonsense").find("x.jsonl, line 2"), 0u);
  EXPECT_EQ(refusal("{\"prompt\": [256], \"response\": [2]}").find("x.jsonl, line 1: prompt[0]"),
            0u);
  EXPECT_NE(refusal("{\"prompt\": \"a\", \"response\": [2]}", 100).find("bytes of a text"),
            std::string::npos);
  EXPECT_NE(refusal("{\"prompt\": [1], \"response\": \"\"}").find("at least one token"),
            std::string::npos);
  EXPECT_NE(refusal("\n\n").find("no documents"), std::string::npos);
  EXPECT_NE(refusal("{\"answer\": 1}").find("messages"), std::string::npos);
  EXPECT_NE(refusal("{\"messages\": [{\"content\": \"a\"}]}").find("messages[0].role"),
            std::string::npos);
  EXPECT_NE(refusal("{\"messages\": []}").find("at least one message"), std::string::npos);
  EXPECT_NE(refusal("{\"text\": \"\"}").find("at least one token"), std::string::npos);

  const std::string valid = "{\"prompt\": \"ab\", \"response\": [1, 2]}\n" + good;
  const kernels::RandomStream random{2, kernels::RandomSite::kShuffle, 0};
  std::uint64_t draws = 0;
  const auto below = [&](std::size_t bound) { return random.below(draws++, bound); };
  for (int round = 0; round < 2000; ++round) {
    std::string text = valid;
    for (std::uint64_t changes = below(3) + 1; changes > 0; --changes) {
      const std::size_t at = below(text.size());
      text[at] = static_cast<char>(below(256));
    }
    const std::string said = refusal(text);
    ASSERT_TRUE(said == "accepted" || said.starts_with("x.jsonl")) << said;
  }
}

/// Of the sequences of an epoch, those whose first token is `token`.
std::int64_t beginning_with(const Dataset& data, std::int32_t token) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < data.sequences(); ++i) {
    Batch batch;
    data.append(i, batch);
    count += batch.tokens.front() == token;
  }
  return count;
}

TEST_F(DataTest, SeveralFilesAreOneInTheirShares) {
  const std::string a = put("a.txt", std::string(8 * 30 + 1, 'a'));
  const std::string b = put("b.txt", std::string(8 * 10 + 1, 'b'));
  const auto open = [&](const std::string& data) {
    return open_data({.train = data, .holds_out = false, .seq_len = 8, .vocab = 256});
  };
  // Without shares everything once.
  const Data plain = open(a + "," + b);
  EXPECT_EQ(plain.train->sequences(), 40);
  EXPECT_EQ(beginning_with(*plain.train, 'b'), 10);
  // As many of the short file as of the long one: it is seen three times.
  const Data even = open(a + "=0.5," + b + "=0.5");
  EXPECT_EQ(even.train->sequences(), 60);
  EXPECT_EQ(beginning_with(*even.train, 'b'), 30);
  EXPECT_NE(even.train->fingerprint(), plain.train->fingerprint());
  // A tenth of the long one's share: the short one is stretched.
  const Data few = open(a + "=1," + b + "=9");
  EXPECT_EQ(beginning_with(*few.train, 'a'), 30);
  EXPECT_EQ(beginning_with(*few.train, 'b'), 270);
  EXPECT_NE(few.train->describe().find("90 % of"), std::string::npos) << few.train->describe();
  // Each file's end is held out.
  const Data held =
      open_data({.train = a + "," + b, .held_out_fraction = 0.2, .seq_len = 8, .vocab = 256});
  ASSERT_NE(held.eval, nullptr);
  EXPECT_GT(beginning_with(*held.eval, 'a'), 0);
  EXPECT_GT(beginning_with(*held.eval, 'b'), 0);
  EXPECT_NE(refusal_of([&] { open(a + "=0.5," + b); }).find("a share for each file or for none"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { open(a + "=0," + b + "=1"); }).find("a number above 0"),
            std::string::npos);
}

}  // namespace
}  // namespace shardwright::exec
