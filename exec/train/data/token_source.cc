// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/token_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <vector>

#include "exec/train/data/mapped_file.h"
#include "kernels/random.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

namespace detail {

void check_vocabulary(std::span<const std::int32_t> tokens, std::int64_t first, std::int64_t vocab,
                      const std::string& file) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab) continue;
    throw Error(fmt::format("{}: token {} is {}, expected 0 to {}, the vocabulary of the model",
                            file, first + static_cast<std::int64_t>(i), tokens[i], vocab - 1));
  }
}

std::uint32_t fingerprint_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kEnds = std::size_t{1} << 16;
  const std::uint64_t size = bytes.size();
  const std::uint32_t of_size = crc32(std::as_bytes(std::span(&size, 1)));
  return crc32(bytes.last(std::min(kEnds, bytes.size())),
               crc32(bytes.first(std::min(kEnds, bytes.size())), of_size));
}

}  // namespace detail

namespace {

constexpr std::int64_t kLlmcHeaderInts = 256;
constexpr std::int64_t kLlmcHeaderBytes = 4 * kLlmcHeaderInts;

struct LlmcVersion {
  std::int32_t magic;
  std::int32_t version;
  std::int64_t token_bytes;
};
constexpr LlmcVersion kLlmcVersions[] = {{20240520, 1, 2}, {20240801, 7, 4}};

void check_range(std::int64_t first, std::size_t count, std::int64_t size) {
  SHARDWRIGHT_CHECK(first >= 0 && first + static_cast<std::int64_t>(count) <= size,
                    "tokens {} to {} of {}", first, first + static_cast<std::int64_t>(count), size);
}

class TextSource final : public TokenSource {
 public:
  TextSource(const std::filesystem::path& path, std::int64_t vocab, bool asked) : file_(path) {
    require_bytes(file_.name(), vocab, asked);
  }
  std::int64_t size() const override { return std::ssize(file_.bytes()); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    check_range(first, out.size(), size());
    file_.require_whole();
    const std::byte* at = file_.bytes().data() + first;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::to_integer<std::int32_t>(at[i]);
  }
  std::string describe() const override {
    return fmt::format("{}, {} bytes of text", file_.name(), size());
  }
  std::uint32_t fingerprint() const override { return detail::fingerprint_of(file_.bytes()); }

 private:
  MappedFile file_;
};

class LlmcSource final : public TokenSource {
 public:
  LlmcSource(const std::filesystem::path& path, std::int64_t vocab) : file_(path), vocab_(vocab) {
    const std::span<const std::byte> bytes = file_.bytes();
    const std::string& name = file_.name();
    if (std::ssize(bytes) < kLlmcHeaderBytes) {
      throw Error(fmt::format("{}: {} bytes, expected a header of llm.c of {} bytes", name,
                              bytes.size(), kLlmcHeaderBytes));
    }
    std::int32_t header[3];
    std::memcpy(header, bytes.data(), sizeof header);
    for (const LlmcVersion& known : kLlmcVersions) {
      if (header[0] != known.magic) continue;
      if (header[1] != known.version) {
        throw Error(fmt::format("{}: version {} of llm.c's format, expected {} after magic {}",
                                name, header[1], known.version, known.magic));
      }
      token_bytes_ = known.token_bytes;
    }
    if (token_bytes_ == 0) {
      throw Error(fmt::format("{}: magic number {}, expected 20240520 or 20240801 of llm.c", name,
                              header[0]));
    }
    size_ = header[2];
    const std::int64_t data_bytes = std::ssize(bytes) - kLlmcHeaderBytes;
    if (size_ < 0 || size_ * token_bytes_ != data_bytes) {
      throw Error(fmt::format("{}: the header promises {} tokens of {} bytes, but {} bytes follow",
                              name, size_, token_bytes_, data_bytes));
    }
  }
  std::int64_t size() const override { return size_; }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    check_range(first, out.size(), size_);
    file_.require_whole();
    const std::byte* at = file_.bytes().data() + kLlmcHeaderBytes + first * token_bytes_;
    if (token_bytes_ == 4) {
      std::memcpy(out.data(), at, out.size_bytes());
    } else {
      for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t token = 0;
        std::memcpy(&token, at + 2 * i, sizeof token);
        out[i] = token;
      }
    }
    detail::check_vocabulary(out, first, vocab_, file_.name());
  }
  std::string describe() const override {
    return fmt::format("{}, {} tokens of llm.c's format v{}", file_.name(), size_,
                       token_bytes_ == 2 ? 1 : 7);
  }
  std::uint32_t fingerprint() const override { return detail::fingerprint_of(file_.bytes()); }

 private:
  MappedFile file_;
  std::int64_t vocab_;
  std::int64_t token_bytes_ = 0;
  std::int64_t size_ = 0;
};

class SyntheticSource final : public TokenSource {
 public:
  SyntheticSource(std::uint64_t seed, std::int64_t vocab)
      : random_{seed, kernels::RandomSite::kSynthetic, 0}, vocab_(vocab) {}
  std::int64_t size() const override { return std::int64_t{1} << 40; }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    check_range(first, out.size(), size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(first) + i;
      const auto vocab = static_cast<std::uint64_t>(vocab_);
      const std::uint64_t drawn = random_.below(at / 2, vocab);
      out[i] = static_cast<std::int32_t>(at % 2 == 0 ? drawn : (drawn + 1) % vocab);
    }
  }
  std::string describe() const override { return "synthetic tokens"; }
  std::uint32_t fingerprint() const override {
    const std::uint64_t parts[] = {random_.seed, static_cast<std::uint64_t>(vocab_)};
    return crc32(std::as_bytes(std::span(parts)));
  }

 private:
  kernels::RandomStream random_;
  std::int64_t vocab_;
};

}  // namespace

bool is_llmc_file(std::span<const std::byte> bytes) {
  std::int32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return std::any_of(std::begin(kLlmcVersions), std::end(kLlmcVersions),
                     [&](const LlmcVersion& known) { return known.magic == magic; });
}

void require_bytes(const std::string& name, std::int64_t vocab, bool asked) {
  if (vocab < 256) {
    throw Error(fmt::format(
        "{}: a text has bytes up to 255, but the model's vocab_size is {}, expected at least 256",
        name, vocab));
  }
  if (vocab <= kMostByteVocabulary || asked) return;
  throw Error(fmt::format(
      "{}: a text, whose bytes are not the model's {} tokens, expected token ids", name, vocab));
}

std::unique_ptr<TokenSource> open_text(const std::filesystem::path& path, std::int64_t vocab,
                                       bool asked) {
  return std::make_unique<TextSource>(path, vocab, asked);
}

void check_tokens(const TokenSource& source) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  const std::int64_t pieces = (source.size() + kPiece - 1) / kPiece;
  const std::int64_t parts = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1,
                                                      std::max<std::int64_t>(pieces, 1));
  std::vector<std::exception_ptr> wrong(static_cast<std::size_t>(parts));
  const auto read = [&](std::int64_t part) {
    std::vector<std::int32_t> tokens;
    try {
      for (std::int64_t i = pieces * part / parts; i < pieces * (part + 1) / parts; ++i) {
        tokens.resize(static_cast<std::size_t>(std::min(kPiece, source.size() - i * kPiece)));
        source.read(i * kPiece, tokens);
      }
    } catch (const Error&) {
      wrong[static_cast<std::size_t>(part)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::int64_t part = 1; part < parts; ++part) threads.emplace_back(read, part);
    read(0);
  }
  for (const std::exception_ptr& one : wrong)
    if (one) std::rethrow_exception(one);
}

std::unique_ptr<TokenSource> open_llmc_tokens(const std::filesystem::path& path,
                                              std::int64_t vocab) {
  return std::make_unique<LlmcSource>(path, vocab);
}

std::unique_ptr<TokenSource> synthetic_tokens(std::uint64_t seed, std::int64_t vocab) {
  return std::make_unique<SyntheticSource>(seed, vocab);
}

}  // namespace shardwright::exec
