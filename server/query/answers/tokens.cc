#include "server/query/answers/tokens.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "common/names.h"
#include "common/parse.h"
#include "common/step_set.h"
#include "common/text.h"
#include "proto/text/tokens_text.h"
#include "server/query/answers/message_parts.h"
#include "server/query/answers/token_sequences.h"
#include "server/query/answers/weights.h"
#include "server/query/compare/heat_cell.h"
#include "server/query/compare/name_map.h"
#include "server/query/suggest.h"
#include "server/query/tokens/paired_taps.h"
#include "server/query/tokens/token_table.h"

namespace statcollect::query {
namespace {

class TokenComparer {
 public:
  TokenComparer(const Context& context, const TokensRequest& request, const NameMap& names,
                TokenTable a, TokenTable b, v1::GetTokensResponse& out)
      : context_(context),
        request_(request),
        names_(names),
        a_(std::move(a)),
        b_(std::move(b)),
        out_(out) {}

  Status Run() {
    PairAll();
    CheckTokens();
    CheckTaps();
    STATCOLLECT_RETURN_IF_ERROR(CheckWeights());
    CheckDTypes();
    CheckRepeated();
    for (const std::string& note : names_.Unused(request_.run_a, request_.run_b))
      out_.add_notes(note);
    if (out_.verdict() == v1::VERDICT_INCOMPARABLE) return Status::Ok();
    if (!request_.exact) STATCOLLECT_RETURN_IF_ERROR(Measure());
    for (ComparedTap& pair : pairs_) {
      if (context_.stop.stop_requested()) return {Code::kCancelled, "tokens: cancelled"};
      Compare(pair);
    }
    Judge();
    return request_.cells ? AddSequences(pairs_, request_.sequence, out_) : Status::Ok();
  }

 private:
  void PairAll() {
    PairedTaps paired = PairTaps(names_, a_, b_);
    for (const TapPair& pair : paired.pairs)
      pairs_.push_back({.a = pair.a, .b = pair.b, .cells = {}});
    only_a_ = std::move(paired.only_a);
    only_b_ = std::move(paired.only_b);
  }

  void AddCheck(const char* name, bool ok, std::string detail) {
    v1::PremiseCheck& check = *out_.add_comparable();
    check.set_check(name);
    check.set_ok(ok);
    check.set_detail(std::move(detail));
  }
  void Refuse(std::string why) {
    if (out_.verdict() == v1::VERDICT_INCOMPARABLE) return;
    out_.set_verdict(v1::VERDICT_INCOMPARABLE);
    out_.set_message(std::move(why));
  }

  void CheckTokens() {
    const auto of_a = a_.Keys(), of_b = b_.Keys();
    std::vector<std::uint64_t> common;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                          std::back_inserter(common));
    out_.set_tokens(common.size());
    out_.set_tokens_only_a(of_a.size() - common.size());
    out_.set_tokens_only_b(of_b.size() - common.size());
    AddCheck("tokens", !common.empty(),
             std::to_string(common.size()) + " in both, " +
                 std::to_string(of_a.size() - common.size()) + " only in " + request_.run_a + ", " +
                 std::to_string(of_b.size() - common.size()) + " only in " + request_.run_b);
    for (const TokenTable* run : {&a_, &b_}) {
      if (run->taps().empty())
        Refuse("run '" + run->run() +
               "' has no token records; expected some in both; record them with "
               "statagent.watch(model, tokens=True)");
    }
    if (common.empty())
      Refuse("no token of '" + request_.run_a + "' is in '" + request_.run_b +
             "' after the same tokens; give both the same ids from the first token on (the same "
             "tokenizer, beginning-of-sequence token and chat template; padding masked)");
  }

  void CheckTaps() {
    AddCheck("taps", !pairs_.empty(),
             std::to_string(pairs_.size()) + " in both" + OnlyIn(request_.run_a, only_a_) +
                 OnlyIn(request_.run_b, only_b_));
    if (pairs_.empty())
      Refuse("no tap of '" + request_.run_a + "' has a counterpart in '" + request_.run_b +
             "'; say which names belong together with --map");
    if (!request_.map.empty()) return;
    if (std::string proposal = ProposeKnownMap(only_a_, only_b_); !proposal.empty())
      out_.add_notes(std::move(proposal));
  }

  Status CheckWeights() {
    v1::GetWeightsResponse found;
    const Status asked = GetWeights(
        context_,
        {.run_a = request_.run_a, .run_b = request_.run_b, .step = {}, .map = request_.map}, found);
    if (asked.code() == Code::kNotFound) {
      AddCheck("weights", true, "not known: not recorded in both under one step");
      return Status::Ok();
    }
    STATCOLLECT_RETURN_IF_ERROR(asked);
    std::uint64_t wrong = 0;
    for (const v1::WeightRow& row : found.records()) {
      wrong +=
          row.state() == v1::WEIGHT_STATE_CAST || row.state() == v1::WEIGHT_STATE_SAME_STATISTICS
              ? 0
              : 1;
    }
    const std::string at = " at step " + std::to_string(found.step());
    AddCheck("weights", wrong == 0,
             wrong == 0
                 ? std::to_string(found.compared()) + " arrived" + at
                 : std::to_string(wrong) + " did not arrive" + at + "; statctl weights names them");
    return Status::Ok();
  }

  void CheckDTypes() {
    std::uint64_t other = 0;
    std::string example;
    for (const ComparedTap& pair : pairs_) {
      if (pair.a->dtype == pair.b->dtype) continue;
      if (++other == 1)
        example = std::string(Name(pair.a->dtype)) + " and " + std::string(Name(pair.b->dtype)) +
                  " at " + pair.a->name;
    }
    AddCheck("dtype", other == 0,
             other == 0 ? "the same at every tap"
                        : "differ at " + std::to_string(other) + " of " +
                              std::to_string(pairs_.size()) + " taps: " + example);
  }

  void CheckRepeated() {
    std::uint64_t repeated = 0, unequal = 0, incomplete = 0;
    double apart = 0;
    for (const TokenTable* run : {&a_, &b_}) {
      for (const TokenTap& tap : run->taps()) {
        repeated += tap.repeated;
        unequal += tap.unequal;
        incomplete += tap.incomplete;
        if (tap.apart > FloorOfRounding(tap.dtype, tap.dtype, tap.columns)) apart = tap.apart;
      }
    }
    AddCheck("repeated", apart == 0,
             std::to_string(repeated) + " rows of a token that a step has already, " +
                 std::to_string(unequal) + " with other bits" +
                 (apart == 0 ? "" : ", more than rounding apart"));
    if (incomplete > 0)
      out_.add_notes(std::to_string(incomplete) +
                     " rows are left out, because parts of them were not recorded");
  }

  Status Measure() {
    STATCOLLECT_RETURN_IF_ERROR(MeasureIn(a_, request_.noise, noise_a_));
    return MeasureIn(b_, {}, noise_b_);
  }
  Status MeasureIn(const TokenTable& run, const std::vector<std::string>& repeats, TapNoise& to) {
    STATCOLLECT_ASSIGN_OR_RETURN(to,
                                 TapNoise::Measure(context_.store, run, repeats, request_.steps));
    for (const std::string& name : to.used()) out_.add_noise(name);
    for (const std::string& name : to.useless())
      out_.add_notes("'" + name + "' measures nothing: it has no token of '" + run.run() + "'");
    return Status::Ok();
  }

  double LimitOf(const ComparedTap& pair, v1::TokenTap& row) const {
    if (request_.exact) return 0;
    const auto of_a = noise_a_.At(*pair.a), of_b = noise_b_.At(*pair.b);
    const auto measured = of_a && of_b ? std::max(of_a, of_b) : of_a ? of_a : of_b;
    if (measured) row.set_measured(*measured);
    return LimitOfRounding({.a = pair.a, .b = pair.b}, measured, largest_before_);
  }

  void Compare(ComparedTap& pair) {
    v1::TokenTap& row = *out_.add_taps();
    row.set_tap(pair.a->name);
    if (pair.b->name != pair.a->name) row.set_tap_b(pair.b->name);
    row.set_dtype_a(std::string(Name(pair.a->dtype)));
    row.set_dtype_b(std::string(Name(pair.b->dtype)));
    row.set_columns(pair.a->columns);
    const bool same_width = pair.a->columns == pair.b->columns;
    if (!same_width) row.set_columns_b(pair.b->columns);
    const double limit = LimitOf(pair, row);
    row.set_limit(limit);
    double largest = 0;
    const TokenPair *first = nullptr, *furthest = nullptr;
    const auto pairs = PairTokens(*pair.a, *pair.b);
    for (const TokenPair& token : pairs) {
      const bool equal = pair.a->dtype == pair.b->dtype && same_width &&
                         token.a->stats.hash == token.b->stats.hash;
      if (equal) {
        row.set_equal(row.equal() + 1);
        AddCell(token, kHeatIdentical, pair);
        continue;
      }
      const double apart = same_width
                               ? TokenDistance(token.a->stats, token.b->stats, pair.a->columns)
                               : std::numeric_limits<double>::infinity();
      if (furthest == nullptr || apart > largest) furthest = &token;
      largest = std::max(largest, apart);
      const bool diverged = request_.exact || apart > limit;
      AddCell(token, HeatLevel(apart, limit, diverged), pair);
      if (!diverged) continue;
      row.set_diverged(row.diverged() + 1);
      if (first == nullptr || token.a->position < first->a->position) first = &token;
    }
    row.set_rows(pairs.size());
    row.set_distance(largest);
    if (first != nullptr) SetToken(*first, *row.mutable_first());
    if (furthest != nullptr) SetToken(*furthest, *row.mutable_furthest());
    if (std::isfinite(largest)) largest_before_ = std::max(largest_before_, largest);
  }

  void AddCell(const TokenPair& token, std::uint8_t level, ComparedTap& tap) const {
    if (!request_.cells) return;
    tap.cells.push_back({.key = token.a->key,
                         .level = level,
                         .a = token.a->stats.sketch[0],
                         .b = token.b->stats.sketch[0]});
  }

  static void SetToken(const TokenPair& pair, v1::TokenPlace& to) {
    to.set_key(pair.a->key);
    to.set_position(pair.a->position);
    to.set_step_a(pair.a->step);
    to.set_step_b(pair.b->step);
    to.set_rank_a(pair.a->rank);
    to.set_rank_b(pair.b->rank);
    const bool value = pair.a->columns == 1;
    to.set_a(static_cast<double>(value ? pair.a->stats.sketch[0] : pair.a->stats.l2));
    to.set_b(static_cast<double>(value ? pair.b->stats.sketch[0] : pair.b->stats.l2));
  }

  void Judge() {
    bool equal = only_a_.empty() && only_b_.empty();
    for (int i = 0; i < out_.taps_size(); ++i) {
      const v1::TokenTap& row = out_.taps(i);
      equal = equal && row.equal() == row.rows();
      if (row.diverged() == 0) continue;
      out_.set_first(static_cast<std::uint32_t>(i));
      out_.set_verdict(v1::VERDICT_DIVERGED);
      return;
    }
    out_.set_verdict(equal ? v1::VERDICT_IDENTICAL : v1::VERDICT_WITHIN_TOLERANCE);
  }

  const Context& context_;
  const TokensRequest& request_;
  const NameMap& names_;
  const TokenTable a_, b_;
  v1::GetTokensResponse& out_;
  std::vector<ComparedTap> pairs_;
  std::vector<std::string> only_a_, only_b_;
  TapNoise noise_a_, noise_b_;
  double largest_before_ = 0;  // distance at the taps so far
};

}  // namespace

Result<TokensRequest> FromWire(const v1::GetTokensRequest& request) {
  for (const std::string* run : {&request.run_a(), &request.run_b()})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  for (const std::string& run : request.noise()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
  STATCOLLECT_RETURN_IF_ERROR(NameMap::Parse(request.map()).status());
  STATCOLLECT_RETURN_IF_ERROR(StepSet::Parse(request.steps()).status());
  std::optional<std::uint64_t> sequence;
  if (!request.sequence().empty()) {
    const std::string_view text = request.sequence();
    sequence = ParseNumber<std::uint64_t>(text.substr(text.starts_with("0x") ? 2 : 0), 16);
    if (!sequence)
      return Status(Code::kInvalidArgument,
                    "tokens: sequence is '" + Printable(request.sequence()) +
                        "'; expected the key of a token, as the answer writes it");
  }
  return TokensRequest{.run_a = request.run_a(),
                       .run_b = request.run_b(),
                       .map = request.map(),
                       .steps = request.steps(),
                       .exact = request.exact(),
                       .noise = {request.noise().begin(), request.noise().end()},
                       .cells = request.cells(),
                       .sequence = sequence};
}

Status GetTokens(const Context& context, const TokensRequest& request, v1::GetTokensResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto names, NameMap::Parse(request.map));
  STATCOLLECT_ASSIGN_OR_RETURN(auto a,
                               TokenTable::Read(context.store, request.run_a, request.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b,
                               TokenTable::Read(context.store, request.run_b, request.steps));
  out.set_run_a(request.run_a);
  out.set_run_b(request.run_b);
  out.set_exact(request.exact);
  STATCOLLECT_RETURN_IF_ERROR(
      TokenComparer(context, request, names, std::move(a), std::move(b), out).Run());
  *out.mutable_text() = TokensText(out);
  return Status::Ok();
}

}  // namespace statcollect::query
