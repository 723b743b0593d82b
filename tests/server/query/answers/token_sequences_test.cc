// Sequences of tokens, found by their keys alone, and the rows of one of them.
#include "server/query/answers/token_sequences.h"

#include <cmath>
#include <functional>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/stats/rows.h"
#include "server/query/answers/token_chains.h"
#include "server/query/answers/tokens.h"
#include "server/query/compare/heat_cell.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::RunWriter;

using Ids = std::vector<std::uint64_t>;

std::vector<PlacedToken> KeysOf(const Ids& ids) {
  std::vector<PlacedToken> tokens;
  std::uint64_t key = stats::kTokenKeyStart;
  for (const std::uint64_t id : ids) {
    key = stats::TokenKey(key, id);
    tokens.push_back({.position = static_cast<std::uint32_t>(tokens.size()), .key = key});
  }
  return tokens;
}

// The ids of a sequence from its last token back.
std::vector<std::int64_t> Walk(const std::vector<ChainedToken>& chained, const PlacedToken& last) {
  std::vector<std::int64_t> ids;
  auto at = std::find_if(chained.begin(), chained.end(),
                         [&](const ChainedToken& one) { return one.token == last; });
  while (at != chained.end()) {
    ids.push_back(at->id ? std::int64_t{*at->id} : -1);
    if (!at->before) break;
    at = chained.begin() + static_cast<std::ptrdiff_t>(*at->before);
  }
  return ids;
}

TEST(TokenChains, AreFoundWithTheirIdsWhateverTheOrder) {
  const auto one = KeysOf({5, 70'000, 0, (1 << 24) - 1, 5}), other = KeysOf({5, 70'000, 3});
  auto all = other;
  all.insert(all.end(), one.rbegin(), one.rend());
  const auto chained = ChainTokens(all);
  EXPECT_EQ(chained.size(), 6u) << "what they share is there once";
  EXPECT_THAT(Walk(chained, one.back()), ElementsAre(5, (1 << 24) - 1, 0, 70'000, 5));
  EXPECT_THAT(Walk(chained, other.back()), ElementsAre(3, 70'000, 5));
}

TEST(TokenChains, EndWhereATokenIsMissingOrAnEmbeddingStandsForIt) {
  auto tokens = KeysOf({1, 2, 3, 4, 5});
  tokens.erase(tokens.begin() + 2);
  EXPECT_THAT(Walk(ChainTokens(tokens), tokens.back()), ElementsAre(5, -1));
  const auto image = KeysOf({1, 0x8765432187654321u, 3});
  EXPECT_THAT(Walk(ChainTokens(image), image.back()), ElementsAre(3, -1));
}

TEST(TokenChains, AreFoundAmongThousandsOfSequences) {
  std::vector<PlacedToken> all;
  std::vector<PlacedToken> ends;
  for (std::uint64_t number = 0; number < 3000; ++number) {
    Ids ids(8);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = testing::MixBits(8 * number + i) % 150'000;
    const auto tokens = KeysOf(ids);
    all.insert(all.end(), tokens.begin(), tokens.end());
    ends.push_back(tokens.back());
  }
  const auto chained = ChainTokens(all);
  std::size_t linked = 0;
  for (const ChainedToken& token : chained) linked += token.before && token.id ? 1 : 0;
  EXPECT_EQ(linked, 7u * 3000);
  EXPECT_EQ(Walk(chained, ends[2999]).size(), 8u);
}

class TokenSequencesTest : public ::testing::Test {
 protected:
  // How many times as large as usual a row is.
  using Size = std::function<float(const std::string& tap, const PlacedToken& token)>;
  static float Usual(const std::string&, const PlacedToken&) { return 1; }
  static float LateInTheLayer(const std::string& tap, const PlacedToken& token) {
    return tap == "layers.0" && token.position >= 3 ? 1.5F : 1;
  }

  // Rows of the taps "embed", "layers.0" and "layers.1", and log-probabilities.
  void Record(const std::string& run, const std::vector<Ids>& sequences, const Size& size = Usual) {
    RunWriter writer(store_, run);
    for (const std::string tap : {"embed", "layers.0", "layers.1", "logprob"}) {
      const bool values = tap == "logprob";
      TokenRecord record{.tap = tap, .dtype = DType::kF32, .columns = values ? 1u : 8u};
      for (const Ids& ids : sequences) {
        for (const PlacedToken& token : KeysOf(ids)) {
          const float times = size(tap, token);
          TokenRow& row = record.rows.emplace_back();
          row.key = token.key;
          row.position = token.position;
          row.stats.l2 = times;
          row.stats.sketch[0] = values ? -static_cast<float>(token.position) : times;
          row.stats.hash = token.key + (times > 1 ? 1 : 0);
        }
      }
      writer.Tokens(0, record);
    }
    writer.Commit();
  }
  Result<v1::GetTokensResponse> Answer(std::optional<std::uint64_t> sequence = {}) {
    return Ask(store_, GetTokens,
               {.run_a = "trainer", .run_b = "engine", .cells = true, .sequence = sequence});
  }
  FakeStore store_;
};

const Ids kLong = {1, 2, 3, 4, 5}, kShort = {1, 2, 9};

TEST_F(TokenSequencesTest, TheOneThatPartsIsShownTapByTap) {
  Record("trainer", {kShort, kLong});
  Record("engine", {kLong, kShort}, LateInTheLayer);
  const auto found = Answer();
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->sequences_size(), 2);
  EXPECT_EQ(found->sequences_total(), 2u);
  EXPECT_EQ(found->sequences(0).key(), KeysOf(kLong).back().key);
  EXPECT_EQ(found->sequences(0).diverged(), 2u);
  EXPECT_EQ(found->sequences(1).diverged(), 0u);
  EXPECT_EQ(found->sequences(1).last_position(), 2u);
  const v1::TokenCells& shown = found->sequence();
  EXPECT_EQ(shown.of().key(), found->sequences(0).key());
  EXPECT_THAT(shown.ids(), ElementsAre(1, 2, 3, 4, 5));
  ASSERT_EQ(shown.cells().size(), 20u);
  for (std::size_t i = 0; i < 20; ++i) {
    const auto level = static_cast<std::uint8_t>(shown.cells()[i]);
    if (i == 8 || i == 9) {
      EXPECT_GE(level, kHeatDivergedMin) << i;
    } else {
      EXPECT_EQ(level, kHeatIdentical) << i;
    }
  }
  ASSERT_EQ(shown.values_size(), 1);
  EXPECT_EQ(shown.values(0).tap(), 3u);
  EXPECT_THAT(shown.values(0).b(), ElementsAre(0, -1, -2, -3, -4));
}

TEST_F(TokenSequencesTest, TheOneThatPartsFirstIsShownNotTheOneThatPartsMost) {
  const PlacedToken of_short = KeysOf(kShort).back();
  Record("trainer", {kShort, kLong});
  Record("engine", {kLong, kShort}, [&](const std::string& tap, const PlacedToken& token) {
    if (tap == "layers.0") return token == of_short ? 1.01F : 1.0F;
    return tap == "layers.1" && token.position >= 3 ? 1.5F : 1.0F;
  });
  const auto found = Answer();
  EXPECT_EQ(found->taps(static_cast<int>(found->first())).tap(), "layers.0");
  EXPECT_EQ(found->sequences(0).diverged(), 2u) << "the long one";
  EXPECT_THAT(found->sequence().ids(), ElementsAre(1, 2, 9));
}

TEST_F(TokenSequencesTest, AnyCanBeAskedForByATokenOfIt) {
  Record("trainer", {kShort, kLong});
  Record("engine", {kLong, kShort}, LateInTheLayer);
  EXPECT_THAT(Answer(KeysOf(kShort).back().key)->sequence().ids(), ElementsAre(1, 2, 9));
  EXPECT_THAT(Answer(KeysOf(kShort)[1].key)->sequence().ids(), ElementsAre(1, 2, 3, 4, 5))
      << "of those that share it, the one that parts most";
  const auto unknown = Answer(77);
  EXPECT_EQ(unknown.status().code(), Code::kNotFound);
  EXPECT_THAT(unknown.status().message(), HasSubstr("no token with the key 0x000000000000004d"));
  v1::GetTokensRequest request;
  request.set_run_a("a");
  request.set_run_b("b");
  request.set_sequence("0x4d");
  EXPECT_EQ(FromWire(request)->sequence, 77u);
  request.set_sequence("77 or so");
  EXPECT_EQ(FromWire(request).status().code(), Code::kInvalidArgument);
}

TEST_F(TokenSequencesTest, WhatOnlyOneRunHasIsSaidAndALongSequenceIsCut) {
  Record("trainer", {kLong});
  Record("engine", {{1, 2, 3}});
  const auto short_one = Answer();
  ASSERT_TRUE(short_one.ok());
  EXPECT_EQ(short_one->sequence().ids_size(), 5);
  EXPECT_EQ(static_cast<std::uint8_t>(short_one->sequence().cells()[3]), kHeatMissing);
  EXPECT_TRUE(std::isnan(short_one->sequence().values(0).b(4)));
  Ids many(kTokenPositionsMax + 5);
  std::iota(many.begin(), many.end(), 1);
  Record("trainer", {many});
  Record("engine", {many});
  const auto long_one = Answer();
  EXPECT_EQ(long_one->sequence().cells().size(), 4 * kTokenPositionsMax);
  EXPECT_THAT(long_one->notes(0), HasSubstr("of the 16389 tokens of the sequence"));
}

}  // namespace
}  // namespace statcollect::query
