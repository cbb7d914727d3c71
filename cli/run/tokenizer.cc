// SPDX-License-Identifier: Apache-2.0
#include "cli/run/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "cli/build_info.h"
#include "cli/child.h"
#include "cli/export/source.h"
#include "cli/run/job_facts.h"
#include "cli/run/printer.h"
#include "cli/streams.h"
#include "cli/text.h"
#include "exec/comm/sha256.h"
#include "exec/train/data/mapped_file.h"
#include "profiles/data_file.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/read_file.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

/// What AutoTokenizer and GenerationConfig of Transformers look for.
constexpr std::array kFiles = {"tokenizer.json",     "tokenizer_config.json",
                               "tokenizer.model",    "special_tokens_map.json",
                               "added_tokens.json",  "vocab.json",
                               "vocab.txt",          "merges.txt",
                               "spiece.model",       "chat_template.jinja",
                               "chat_template.json", "generation_config.json"};
/// Which say what the tokens are, each of the first ones alone.
constexpr std::array kTokenizers = {"tokenizer.json",   "tokenizer.model", "spiece.model",
                                    "vocab.json",       "vocab.txt",       "merges.txt",
                                    "added_tokens.json"};
constexpr std::size_t kAlone = 5;
constexpr std::size_t kMostTokenizerBytes = std::size_t{256} << 20;

bool has_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  return std::any_of(kTokenizers.begin(), kTokenizers.begin() + kAlone,
                     [&](const char* name) { return fs::exists(folder / name, ignored); });
}

exec::Digest digest_of(std::string_view text) {
  return exec::sha256(std::as_bytes(std::span(text)));
}

/// As shardwright.tokens hashes a folder (files_of).
exec::Digest hash_of_tokenizer(const fs::path& folder) {
  std::string all;
  for (const char* name : kTokenizers) {
    std::error_code ignored;
    if (!fs::is_regular_file(folder / name, ignored)) continue;
    const std::string text = read_file(folder / name, kMostTokenizerBytes);
    all += fmt::format("{} {}\n{}", name, text.size(), text);
  }
  return digest_of(all);
}

/// As Transformers finds it; empty: there is none, or several by name.
std::string chat_template_of(const fs::path& folder) {
  std::error_code ignored;
  if (const fs::path own = folder / "chat_template.jinja"; fs::is_regular_file(own, ignored))
    return read_file(own, kMostTokenizerBytes);
  const fs::path config = folder / "tokenizer_config.json";
  if (!fs::is_regular_file(config, ignored)) return {};
  const nlohmann::json all = parse_json(read_file(config, kMostTokenizerBytes), false);
  const auto at = all.find("chat_template");
  return at != all.end() && at->is_string() ? at->get<std::string>() : std::string();
}

bool is_digest(std::span<const std::byte> made, const exec::Digest& digest) {
  return std::equal(digest.begin(), digest.end(), made.begin(), made.end());
}

/// Whether tokens are those of the tokenizer in the folder, if one is given, or of bytes, and
/// conversations are set by its template, which the trained model is given, too. Its files, which
/// may be large, are read when a token file first names its own.
class KinOfTokens {
 public:
  KinOfTokens(fs::path folder, bool bytes) : folder_(std::move(folder)), bytes_(bytes) {}

  void operator()(const exec::TokenSource& source, const std::string& path) {
    if (source.tokenizer().empty()) return;
    if (!folder_.empty() && !own_) own_ = hash_of_tokenizer(folder_);
    const bool is_own = own_ && is_digest(source.tokenizer(), *own_);
    if (!is_own && !(bytes_ && is_digest(source.tokenizer(), digest_of("bytes")))) {
      throw Error(
          fmt::format("{0}: its tokens are of another tokenizer than that of {1}; expected a "
                      "token file that is made with --tokenizer {1}, or --tokenizer with the "
                      "folder whose tokens these are",
                      path, folder_.empty() ? "bytes" : folder_.string()));
    }
    if (!is_own || source.mask().empty()) return;
    const std::string chats = chat_template_of(folder_);
    if (chats.empty() || is_digest(source.chat_template(), digest_of(chats))) return;
    throw Error(
        fmt::format("{0}: its conversations are set by another chat template than that of {1}; "
                    "expected a token file that is made with the template of {1}, or its own as "
                    "chat_template.jinja there",
                    path, folder_.string()));
  }

 private:
  fs::path folder_;
  bool bytes_;
  std::optional<exec::Digest> own_;
};

/// What Python is given: the file that comes with this program, else the module of the package.
std::vector<std::string> converter() {
  const fs::path data = profiles::data_dir().parent_path();
  for (const char* place : {"tokens.py", "../cli/python/shardwright/tokens.py"}) {
    const fs::path script = (data / place).lexically_normal();
    std::error_code ignored;
    if (fs::is_regular_file(script, ignored) && profiles::is_trusted_folder(script.parent_path()))
      return {script.string()};
  }
  return {"-m", "shardwright.tokens"};
}

/// The command that makes a token file `out` of some data for the model.
std::vector<std::string> conversion(const RunOptions& options, const fs::path& folder,
                                    const std::string& data, const std::string& out) {
  std::vector<std::string> words = converter();
  words.insert(words.end(), {out, "--tokenizer", folder.empty() ? "FOLDER" : folder.string(),
                             "--vocab", fmt::format("{}", options.model.vocab), "--seq-len",
                             fmt::format("{}", options.plan.seq_len), data});
  return words;
}

std::string pasted(std::string text, const std::vector<std::string>& words) {
  for (const std::string& word : words) text += fmt::format(" {}", shell_word(word).text());
  return text;
}

/// Where the tokens are kept that this converter makes with this tokenizer of these files.
fs::path kept_tokens(const RunOptions& options, const fs::path& folder,
                     const std::vector<std::string>& data) {
  std::string said =
      fmt::format("{} {} {}\n", build_info().version, options.model.vocab, options.plan.seq_len);
  std::vector<fs::path> files(data.begin(), data.end());
  for (const char* name : kFiles) files.push_back(folder / name);
  files.emplace_back(converter().back());
  for (const fs::path& file : files) {
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) continue;
    said += fmt::format("{} {} {:08x}\n", file.filename().string(), fs::file_size(file),
                        exec::crc32_of_file(file, cache_folder("data")));
  }
  const std::string hash = exec::hex_of(digest_of(said));
  return cache_folder("tokens") / (hash + ".tok");
}

void convert(std::vector<std::string> words) {
  say(messages(), printable(pasted(words.front(), {words.begin() + 1, words.end()}), true));
  Child child(std::move(words));
  for (std::size_t shown = 0; child.running(); shown = child.err().size()) {
    child.wait(-1, 1000);
    fmt::print(messages(), "{}", child.err().substr(shown));
    std::fflush(messages());
  }
  if (const int code = child.exit_code(); code != 0)
    throw Error(fmt::format("the command that makes tokens ended with exit code {}", code));
}

/// Rank 0 makes the file, which takes its name when it is whole.
void wait_for(const fs::path& out, double most_s) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(most_s);
  for (std::error_code ignored; !fs::exists(out, ignored);) {
    if (Clock::now() > end) {
      throw Error(fmt::format("{} is not there after {:g} s, expected rank 0 to make it where all "
                              "ranks see it (XDG_CACHE_HOME), or a longer --rank-timeout",
                              out.string(), most_s),
                  ExitCode::kFailed);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

/// A token file where the person is, of which `before` does not speak.
std::string name_beside(const std::string& data, const std::string& before) {
  std::string name = fs::path(data).lexically_normal().stem().string();
  if (name.empty() || name.find_first_of("*?[") != std::string::npos) name = "data";
  name += ".tok";
  while (before.find(name) != std::string::npos) name.insert(0, "other-");
  return name;
}

}  // namespace

std::vector<fs::path> model_sources(const RunOptions& options) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const std::string& given : {options.model_name, options.weights}) {
    if (given.empty() || !fs::exists(given, ignored)) continue;
    folders.push_back(fs::is_directory(given, ignored) ? fs::path(given)
                                                       : fs::absolute(given).parent_path());
  }
  return folders;
}

void apply_tokenizer(RunOptions& options, const RunSettings& settings) {
  const std::string& wish = settings.text("tokenizer");
  options.data.bytes = wish == "bytes";
  const bool is_auto = wish == "auto";
  const bool takes_bytes =
      options.data.bytes || (is_auto && options.model.vocab <= exec::kMostByteVocabulary);
  std::vector<fs::path> folders = options.data.bytes ? std::vector<fs::path>{}
                                  : is_auto          ? model_sources(options)
                                                     : std::vector<fs::path>{wish};
  std::erase_if(folders, [](const fs::path& folder) { return !has_tokenizer(folder); });
  if (!is_auto && !takes_bytes && folders.empty())
    settings.fail("tokenizer", "auto, bytes or a folder with a tokenizer");
  const fs::path folder = folders.empty() ? fs::path() : folders.front();
  if (options.data.bytes || !folder.empty())
    options.data.require_kin = KinOfTokens(folder, takes_bytes);
  if (takes_bytes) return;
  const char* chosen = std::getenv("SHARDWRIGHT_PYTHON");
  const std::string python = chosen == nullptr ? "" : chosen;
  const bool starts = !python.empty() && !folder.empty() && !cache_folder("tokens").empty();
  std::string refused, commands;
  for (std::string* data : {&options.data.train, &options.data.eval}) {
    std::string all;
    for (const exec::DataPart& part : exec::data_parts(*data)) {
      std::string word = part.word;
      const bool is_text =
          std::any_of(part.files.begin(), part.files.end(), [&](const std::string& file) {
            return !file.empty() && exec::is_text(file, options.data.format);
          });
      if (is_text && starts) {
        word = kept_tokens(options, folder, part.files).string();
        if (options.launch.rank != 0) wait_for(word, options.rank_timeout_s);
        if (!fs::exists(word)) {
          fs::create_directories(fs::path(word).parent_path());
          std::vector<std::string> words = conversion(options, folder, part.word, word);
          words.insert(words.begin(), python);
          convert(std::move(words));
        }
      } else if (is_text) {
        if (refused.empty()) refused = part.word;
        const std::string out = name_beside(part.word, commands);
        commands += pasted(commands.empty() ? "python3" : " && python3",
                           conversion(options, folder, part.word, out));
      }
      all += (all.empty() ? "" : ",") + word;
      if (part.share > 0) all += fmt::format("={}", part.share);
    }
    if (starts && all != *data) options.data.format = exec::DataFormat::kAuto;
    *data = all;
  }
  if (commands.empty()) return;
  throw Error(fmt::format(
      "{}: a text, whose bytes are not the model's {} tokens{}; expected token files in the place "
      "of texts: {} (with SHARDWRIGHT_PYTHON, a Python that has transformers, run does that "
      "itself; --tokenizer bytes takes the bytes)",
      refused, options.model.vocab,
      folder.empty() ? ", and no tokenizer is beside it (FOLDER)" : "", commands));
}

int copy_tokenizer(const std::vector<fs::path>& folders, const fs::path& model) {
  int copied = 0;
  for (const fs::path& folder : folders) {
    for (const char* name : kFiles) {
      std::error_code ignored;
      if (!fs::is_regular_file(folder / name, ignored) || fs::exists(model / name, ignored)) {
        continue;
      }
      write_file_atomically(model / name, read_file(folder / name, kMostTokenizerBytes),
                            OutputPlace::kInFolder);
      ++copied;
    }
    if (copied > 0) break;
  }
  return copied;
}

}  // namespace shardwright::cli
