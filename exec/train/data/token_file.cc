// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/token_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <vector>

#include "exec/train/data/mapped_file.h"
#include "kernels/random.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::exec {

namespace {

/// Throws Error when a token is not in [0, vocab).
void check_vocabulary(std::span<const std::int32_t> tokens, std::int64_t first, std::int64_t vocab,
                      const std::string& file) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab) continue;
    throw Error(fmt::format("{}: token {} is {}, expected 0 to {}, the vocabulary of the model",
                            file, first + static_cast<std::int64_t>(i), tokens[i], vocab - 1));
  }
}

/// Throws Error where the bytes of a text are no tokens of the model, unless they are `asked` for.
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

/// Of the first and last 64 KiB and the size.
std::uint32_t fingerprint_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kEnds = std::size_t{1} << 16;
  const std::uint64_t size = bytes.size();
  const std::uint32_t of_size = crc32(std::as_bytes(std::span(&size, 1)));
  return crc32(bytes.last(std::min(kEnds, bytes.size())),
               crc32(bytes.first(std::min(kEnds, bytes.size())), of_size));
}

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
  std::uint32_t fingerprint() const override { return fingerprint_of(file_.bytes()); }

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
    check_vocabulary(out, first, vocab_, file_.name());
  }
  std::string describe() const override {
    return fmt::format("{}, {} tokens of llm.c's format v{}", file_.name(), size_,
                       token_bytes_ == 2 ? 1 : 7);
  }
  std::uint32_t fingerprint() const override { return fingerprint_of(file_.bytes()); }

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

namespace {

constexpr std::string_view kMagic = "SHWTOKEN";
constexpr std::uint32_t kPlain = 1, kWithDocuments = 2;  // versions

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t token_bytes;
  std::uint64_t vocab;
  std::uint64_t tokens;
  std::uint64_t block_tokens;
  std::uint32_t table_crc;
  std::uint32_t header_crc;
};
static_assert(sizeof(Header) == 48);
constexpr std::size_t kCheckedBytes = 44;

constexpr std::size_t kHashBytes = 32;

/// What version 2 adds.
struct DocumentsHeader {
  std::uint64_t documents;
  std::uint32_t masked;
  std::uint32_t tables_crc;
  std::byte hashes[3][kHashBytes];
  std::uint32_t crc;
  std::uint32_t zero;
};
static_assert(sizeof(DocumentsHeader) == 120);

std::uint32_t header_crc(const Header& header) {
  return crc32(std::as_bytes(std::span(&header, 1)).first(kCheckedBytes));
}

class TokenFile final : public TokenSource {
 public:
  TokenFile(const std::filesystem::path& path, std::int64_t vocab) : file_(path) {
    const std::span<const std::byte> bytes = file_.bytes();
    const std::string& name = file_.name();
    if (!is_token_file(bytes)) {
      throw Error(fmt::format("{}: no token file, expected it to begin with {}", name, kMagic));
    }
    if (bytes.size() < sizeof header_) {
      throw Error(fmt::format("{}: {} bytes, expected a header of {}: the file was cut short", name,
                              bytes.size(), sizeof header_));
    }
    std::memcpy(&header_, bytes.data(), sizeof header_);
    if (header_.version != kPlain && header_.version != kWithDocuments) {
      throw Error(fmt::format("{}: version {}, expected {} or {}", name, header_.version, kPlain,
                              kWithDocuments));
    }
    if (header_crc(header_) != header_.header_crc) {
      throw Error(fmt::format("{}: the header's checksum is wrong: the file is damaged", name));
    }
    const std::uint32_t width = header_.token_bytes;
    if (width != 1 && width != 2 && width != 4) {
      throw Error(fmt::format("{}: tokens of {} bytes, expected 1, 2 or 4", name, width));
    }
    if (header_.vocab > static_cast<std::uint64_t>(vocab)) {
      throw Error(fmt::format("{}: made for a vocabulary of {}, but the model's vocab_size is {}",
                              name, header_.vocab, vocab));
    }
    const std::uint64_t most = bytes.size();
    if (header_.block_tokens == 0 || header_.tokens > most || header_.block_tokens > (1u << 30)) {
      throw Error(fmt::format("{}: {} tokens in blocks of {} do not fit into {} bytes", name,
                              header_.tokens, header_.block_tokens, bytes.size()));
    }
    blocks_ = (header_.tokens + header_.block_tokens - 1) / header_.block_tokens;
    const std::uint64_t tables = header_.version == kWithDocuments ? read_documents() : 0;
    const std::uint64_t expected = sizeof header_ + tables + 4 * blocks_ + width * header_.tokens;
    if (expected != bytes.size()) {
      throw Error(fmt::format("{}: {} bytes, expected {} for its {} tokens", name, bytes.size(),
                              expected, header_.tokens));
    }
    const auto table = bytes.subspan(sizeof header_ + tables, 4 * blocks_);
    if (crc32(table) != header_.table_crc) {
      throw Error(
          fmt::format("{}: the checksum of the block table is wrong: the file is damaged", name));
    }
    table_.resize(blocks_);
    if (!table_.empty()) std::memcpy(table_.data(), table.data(), table.size());
    data_ = bytes.subspan(sizeof header_ + tables + table.size());
    checked_ = std::make_unique<std::atomic<bool>[]>(blocks_);
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(header_.tokens); }

  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    SHARDWRIGHT_CHECK(first >= 0 && first + std::ssize(out) <= size(), "tokens {} to {} of {}",
                      first, first + std::ssize(out), size());
    if (out.empty()) return;
    file_.require_whole();
    const auto begin = static_cast<std::uint64_t>(first);
    for (std::uint64_t block = begin / header_.block_tokens;
         block <= (begin + out.size() - 1) / header_.block_tokens; ++block) {
      check_block(block);
    }
    switch (header_.token_bytes) {
      case 1:
        copy<std::uint8_t>(begin, out);
        break;
      case 2:
        copy<std::uint16_t>(begin, out);
        break;
      default:
        copy<std::uint32_t>(begin, out);
    }
    check_vocabulary(out, first, static_cast<std::int64_t>(header_.vocab), file_.name());
  }

  std::string describe() const override {
    return fmt::format("{}, {} tokens of a vocabulary of {}", file_.name(), header_.tokens,
                       header_.vocab);
  }
  std::uint32_t fingerprint() const override { return fingerprint_of(file_.bytes()); }
  std::span<const std::uint64_t> documents() const override { return documents_; }
  std::span<const std::byte> mask() const override { return mask_; }
  std::span<const std::byte> tokenizer() const override { return tokenizer_; }
  std::span<const std::byte> chat_template() const override { return chat_template_; }

 private:
  /// Of version 2; how many bytes stand between the first header and the block table.
  std::uint64_t read_documents() {
    const std::span<const std::byte> all = file_.bytes();
    const auto fail = [this](const char* what) {
      throw Error(fmt::format("{}: {}: the file is damaged", file_.name(), what));
    };
    DocumentsHeader more{};
    if (all.size() < sizeof header_ + sizeof more) fail("it ends in its header");
    std::memcpy(&more, all.data() + sizeof header_, sizeof more);
    if (crc32(all.subspan(sizeof header_, offsetof(DocumentsHeader, crc))) != more.crc ||
        more.zero != 0)
      fail("the checksum of the second header is wrong");
    tokenizer_ = all.subspan(sizeof header_ + offsetof(DocumentsHeader, hashes), kHashBytes);
    chat_template_ =
        all.subspan(sizeof header_ + offsetof(DocumentsHeader, hashes) + kHashBytes, kHashBytes);
    if (std::ranges::count(tokenizer_, std::byte{0}) == kHashBytes) tokenizer_ = {};
    const auto tables = all.subspan(sizeof header_ + sizeof more);
    const std::uint64_t mask_bytes = more.masked == 0 ? 0 : (header_.tokens + 7) / 8;
    if (mask_bytes > tables.size() || more.documents > (tables.size() - mask_bytes) / 8)
      fail("it ends in its documents");
    const auto ends = tables.first(8 * more.documents);
    mask_ = tables.subspan(ends.size(), mask_bytes);
    if (crc32(tables.first(ends.size() + mask_bytes)) != more.tables_crc)
      fail("the checksum of the documents is wrong");
    // The header has a multiple of 8 bytes, and files are mapped at pages.
    documents_ = {reinterpret_cast<const std::uint64_t*>(ends.data()), more.documents};
    std::uint64_t before = 0;
    for (const std::uint64_t end : documents_) {
      if ((end & ~kGoesOn) <= before) fail("a document ends before it begins");
      before = end & ~kGoesOn;
    }
    if (before != header_.tokens) fail("the documents do not end with the tokens");
    return sizeof more + ends.size() + mask_bytes;
  }

  template <class Stored>
  void copy(std::uint64_t begin, std::span<std::int32_t> out) const {
    const std::byte* at = data_.data() + begin * sizeof(Stored);
    for (std::size_t i = 0; i < out.size(); ++i) {
      Stored value = 0;
      std::memcpy(&value, at + i * sizeof value, sizeof value);
      out[i] = static_cast<std::int32_t>(value);
    }
  }

  void check_block(std::uint64_t block) const {
    if (checked_[block].load(std::memory_order_relaxed)) return;
    const std::uint64_t begin = block * header_.block_tokens;
    const std::uint64_t count = std::min(header_.block_tokens, header_.tokens - begin);
    const auto bytes = data_.subspan(begin * header_.token_bytes, count * header_.token_bytes);
    if (crc32(bytes) != table_[block]) {
      throw Error(fmt::format("{}: the checksum of tokens {} to {} is wrong: the file is damaged",
                              file_.name(), begin, begin + count - 1));
    }
    checked_[block].store(true, std::memory_order_relaxed);
  }

  MappedFile file_;
  Header header_{};
  std::uint64_t blocks_ = 0;
  std::vector<std::uint32_t> table_;
  std::span<const std::byte> data_;
  std::span<const std::uint64_t> documents_;
  std::span<const std::byte> mask_, tokenizer_, chat_template_;
  std::unique_ptr<std::atomic<bool>[]> checked_;
};

}  // namespace

bool is_token_file(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() &&
         std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

std::unique_ptr<TokenSource> open_token_file(const std::filesystem::path& path,
                                             std::int64_t vocab) {
  return std::make_unique<TokenFile>(path, vocab);
}

void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      std::int64_t vocab, std::int64_t block_tokens) {
  check_vocabulary(tokens, 0, vocab, path.string());
  Header header{};
  std::memcpy(header.magic, kMagic.data(), kMagic.size());
  header.version = kPlain;
  header.token_bytes = vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4;
  header.vocab = static_cast<std::uint64_t>(vocab);
  header.tokens = tokens.size();
  header.block_tokens = static_cast<std::uint64_t>(block_tokens);
  std::string data(tokens.size() * header.token_bytes, '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(data.data() + i * header.token_bytes, &tokens[i], header.token_bytes);
  }
  std::vector<std::uint32_t> table;
  const std::size_t block_bytes = header.block_tokens * header.token_bytes;
  for (std::size_t begin = 0; begin < data.size(); begin += block_bytes) {
    table.push_back(crc32(std::string_view(data).substr(begin, block_bytes)));
  }
  const auto table_bytes = std::as_bytes(std::span(table));
  header.table_crc = crc32(table_bytes);
  header.header_crc = header_crc(header);
  AtomicFile file(path);
  file.write({reinterpret_cast<const char*>(&header), sizeof header});
  file.write({reinterpret_cast<const char*>(table_bytes.data()), table_bytes.size()});
  file.write(data);
  file.commit();
}

}  // namespace shardwright::exec
