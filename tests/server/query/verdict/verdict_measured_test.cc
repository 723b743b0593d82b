// The verdict from perturbed twins: what their noise explains, and what stands out of it.
#include "server/query/verdict/measured_rule.h"
#include "server/query/verdict/noise_threshold.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class MeasuredVerdict : public VerdictTest {
 protected:
  // By how much the network enlarges one unit in the last place: a thousandfold behind blocks.2.ln,
  // as a router or a hard threshold may, which no rule knows.
  static Level Enlarged(double size) {
    return [size](std::uint64_t step, const TensorKey& key) {
      if (IsInitial(key) || key.kind == Kind::kBatch) return 0.0;
      const bool forward = key.kind == Kind::kOutput;
      const bool behind = step > 0 || !forward || OrderOf(key.name) > OrderOf("blocks.2.ln");
      return behind ? 1000 * size : size;
    };
  }
  void WriteTwinsOfNetwork() {
    WriteTwins([](double ulps) { return Enlarged(kRounding * ulps); });
  }
};

TEST_F(MeasuredVerdict, What_the_network_does_to_rounding_is_measured_where_no_rule_knows_it) {
  Write(Enlarged(2 * kRounding));
  EXPECT_NE(Say(Ask()), "none");  // guessed: a difference that grows a thousandfold
  WriteTwinsOfNetwork();
  const DiffReport report = Ask();
  ExpectExplained(report);
  ASSERT_TRUE(report.noise.has_value());
  EXPECT_EQ(report.noise->runs.size(), 5u);
  EXPECT_EQ(report.noise->scale, (std::vector<double>{1, 1, 32, 1024, 32768}));
}

TEST_F(MeasuredVerdict, A_bug_is_named_where_it_jumps_out_of_the_noise) {
  Write(Sum(Enlarged(kRounding), BugAt("blocks.1.fc", 3e-6)));
  WriteTwinsOfNetwork();
  const DiffReport report = Ask();
  EXPECT_EQ(Say(report), "0 forward blocks.1.fc");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  EXPECT_THAT(report.root->because,
              Contains(HasSubstr("times what the noise of the twins explains")));
}

TEST_F(MeasuredVerdict, A_large_difference_is_judged_by_the_rung_of_the_ladder_that_has_its_size) {
  // Gradients of weights enlarge large noise more than in proportion. Before them, B drifts to a
  // hundred times the noise of a unit, a little at each tensor.
  options_.steps = 1;
  const auto noise = [](double ulps, bool drifts) {
    return [=](std::uint64_t /*step*/, const TensorKey& key) {
      if (IsInitial(key) || key.kind == Kind::kBatch) return 0.0;
      const bool loss = key.name == "loss", forward = loss || key.kind == Kind::kOutput;
      if (!forward && key.kind != Kind::kGradOutput)
        return kRounding * std::pow(ulps * (drifts ? 100 : 1), 1.5);
      const double last = static_cast<double>(2 * Modules().size() - 1);
      const auto order = static_cast<double>(loss ? Modules().size() - 1 : OrderOf(key.name));
      return kRounding * ulps *
             (drifts ? std::pow(100, (forward ? order : last - order) / last) : 1);
    };
  };
  WriteTwins([&](double ulps) { return noise(ulps, false); });
  Write(noise(1, true));
  ExpectExplained(Ask());
}

// Ten times the distance of repeats was allowed everywhere before, which hid half of all bugs.
TEST_F(MeasuredVerdict, Repeats_that_are_named_measure_the_noise_as_twins_do) {
  Write(Sum(Enlarged(kRounding), BugAt("blocks.1.fc", 3e-6)));
  DiffRequest request;
  request.noise = {"a2", "a3"};
  for (const std::string& repeat : request.noise) WriteRepeat(repeat, Enlarged(kRounding));
  const DiffReport report = Ask(request);
  EXPECT_EQ(Say(report), "0 forward blocks.1.fc");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  EXPECT_TRUE(report.root->at.times_noise.has_value());
  EXPECT_EQ(report.noise->runs, request.noise);
  EXPECT_EQ(report.noise->scale, (std::vector<double>{1, 1}));
}

TEST_F(MeasuredVerdict, What_repeats_show_is_explained) {
  Write(Enlarged(2 * kRounding));
  DiffRequest request;
  request.noise = {"a2", "a3"};
  for (const std::string& repeat : request.noise) WriteRepeat(repeat, Enlarged(kRounding));
  ExpectExplained(Ask(request));
}

TEST_F(MeasuredVerdict, A_loss_of_equal_outputs_may_only_round) {
  const auto only_loss = [](double size) {
    return [size](std::uint64_t, const TensorKey& key) { return key.name == "loss" ? size : 0.0; };
  };
  WriteTwins([](double ulps) { return RoundingOf(100 * kRounding * ulps); });
  Write(only_loss(1e-3));
  EXPECT_EQ(Say(Ask()), "0 loss loss");
}

TEST_F(MeasuredVerdict, A_loss_of_equal_outputs_may_be_summed_in_another_order) {
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  Write([](std::uint64_t step, const TensorKey& key) {
    return step == 0 && key.name == "loss" ? 1e-7 : 0.0;
  });
  ExpectExplained(Ask());
}

// An element of a ReLU flips on rank 1, which its sums show and which is trimmed there. The
// gradients of both ranks are the mean of both, and nothing on rank 0 explains them.
TEST_F(MeasuredVerdict, What_one_rank_has_seen_explains_the_reduced_gradients_of_all) {
  options_.ranks = 2;
  options_.steps = 1;
  const auto reduced = [](std::uint64_t, const TensorKey& key) {
    if (IsInitial(key) || key.kind == Kind::kBatch || key.name == "loss") return 0.0;
    return key.kind == Kind::kWeightGrad || key.kind == Kind::kWeight ? 100 * kRounding : kRounding;
  };
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  Write(reduced);
  EXPECT_NE(Say(Ask()), "none");
  store_ = std::make_unique<testing::FakeStore>();
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  of_rank_ = [](std::uint32_t rank, const TensorKey& key, Tensor& tensor) {
    if (rank == 1 && key.kind == Kind::kOutput && key.name == "blocks.1.ln")
      tensor.values[3] += 1e-3;
  };
  Write(reduced);
  ExpectExplained(Ask());
}

// B's router sends one token elsewhere, which rounding does at a tie.
TEST_F(MeasuredVerdict, Other_rows_of_a_tensor_whose_rows_depend_on_the_data_are_a_choice) {
  base_ = RowsOfExperts("");
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  Write(RoundingOf(kRounding), RowsOfExperts("blocks.1.ln"));
  const DiffReport report = Ask();
  EXPECT_EQ(Say(report), "none");
  EXPECT_EQ(report.verdict, Verdict::kWithinTolerance);
  // From equal bits it is none.
  store_ = std::make_unique<testing::FakeStore>();
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  Write(Nothing(), RowsOfExperts("blocks.1.ln"));
  EXPECT_EQ(Say(Ask()), "0 forward blocks.1.ln");
}

// At a tie, two rows may change places: each expert has as many as before, but others.
TEST_F(MeasuredVerdict, As_many_rows_may_be_others_where_noise_sends_them_elsewhere) {
  options_.steps = 1;
  const auto experts = [](const std::string& shorter) {
    return [=](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
      if (key.kind != Kind::kOutput || !key.name.ends_with(".ln")) return tensor;
      const std::size_t rows = key.name == shorter ? 255 : key.name == "blocks.2.ln" ? 250 : 256;
      tensor.values.resize(rows * 8);
      tensor.shape = {static_cast<std::int64_t>(rows), 8};
      return tensor;
    };
  };
  // Of blocks.3.ln, every 32nd row gets so much of another.
  const auto ask = [&](double other, const std::string& twin_has_fewer_of) {
    store_ = std::make_unique<testing::FakeStore>();
    of_rank_ = nullptr;
    base_ = experts("");
    WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
    WriteTwin(1, 3, RoundingOf(kRounding), experts(twin_has_fewer_of));
    of_rank_ = [=](std::uint32_t, const TensorKey& key, Tensor& tensor) {
      if (key.kind != Kind::kOutput || key.name != "blocks.3.ln") return;
      for (std::size_t i = 0; i < tensor.values.size(); ++i) {
        if (i / 8 % 32 == 0) tensor.values[i] += other * (i % 2 == 0 ? 2 : -1);
      }
    };
    Write(RoundingOf(kRounding));
    return Say(Ask());
  };
  EXPECT_EQ(ask(0.28, "blocks.1.ln"), "none");
  EXPECT_EQ(ask(0.28, ""), "0 forward blocks.3.ln");
  EXPECT_EQ(ask(0.01, "blocks.1.ln"), "0 forward blocks.3.ln");
}

TEST_F(MeasuredVerdict, Without_noise_twins_are_not_used) {
  Write(Enlarged(2 * kRounding));
  WriteTwinsOfNetwork();
  DiffRequest request;
  request.no_noise = true;
  const DiffReport report = Ask(request);
  EXPECT_NE(Say(report), "none");
  EXPECT_FALSE(report.noise.has_value());
}

TEST_F(MeasuredVerdict, An_update_from_equal_gradient_weight_and_state_may_only_round) {
  options_.adam = true;
  // Everything else differs by 100 times rounding; the bias's own gradient, weight and state are
  // equal.
  const auto level = [](double bug) {
    return [bug](std::uint64_t step, const TensorKey& key) {
      if (IsInitial(key) || key.kind == Kind::kBatch || step > 0) return 0.0;
      if (key.name == "blocks.0.fc.bias") return key.kind == Kind::kWeight ? bug : 0.0;
      return 100 * kRounding;
    };
  };
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  Write(level(0.3));
  const DiffReport report = Ask();
  // The first output differs by 100 times what nothing explains, so it is the root; the update is
  // listed beside it.
  EXPECT_EQ(report.root->at.step, 0u);
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
}

TEST_F(MeasuredVerdict, A_tensor_that_agreed_before_and_differs_from_equal_inputs_is_certain) {
  Write(BugAt("blocks.2.fc", 6e-7, /*from=*/1));
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  const DiffReport report = Ask();
  EXPECT_EQ(Say(report), "1 forward blocks.2.fc");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
}

TEST_F(MeasuredVerdict, Twins_that_are_equal_to_the_run_measure_nothing_and_it_is_said) {
  Write(RoundingOf(kRounding));
  WriteTwins([](double) { return Nothing(); });
  const DiffReport report = Ask();
  ExpectExplained(report);
  EXPECT_THAT(report.notes, Contains(HasSubstr("equal to a bit for bit")));
  EXPECT_THAT(report.noise->scale, ::testing::IsEmpty());
}

TEST_F(MeasuredVerdict, Twins_of_another_model_are_left_out_and_named) {
  Write(RoundingOf(kRounding));
  const Edit other = [](std::uint64_t, const TensorKey& key,
                        Tensor tensor) -> std::optional<Tensor> {
    return IsInitial(key) ? Scaled(std::move(tensor), 1.5) : tensor;
  };
  WriteTwin(1, 1, RoundingOf(kRounding), other);
  const DiffReport report = Ask();
  EXPECT_THAT(report.notes, Contains(HasSubstr("the twin a.twin-1-1 began with other weights")));
  EXPECT_FALSE(report.noise.has_value());
}

TEST_F(MeasuredVerdict, Steps_behind_the_twins_are_judged_without_them_and_it_is_said) {
  options_.steps = 2;
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  options_.steps = 4;
  Write(Sum(RoundingOf(kRounding), BugAt("blocks.1.fc", 1e-2, /*from=*/3)));
  const DiffReport report = Ask();
  EXPECT_EQ(Say(report), "3 forward blocks.1.fc");
  EXPECT_THAT(report.notes, Contains(HasSubstr("twins end at step 1")));
}

TEST_F(MeasuredVerdict, A_twin_that_is_not_finite_does_not_hide_a_bug) {
  Write(Sum(RoundingOf(kRounding), BugAt("blocks.1.fc", 1e-3)));
  const Edit broken = [](std::uint64_t, const TensorKey& key,
                         Tensor tensor) -> std::optional<Tensor> {
    if (key.name == "blocks.1.fc" && key.kind == Kind::kOutput) tensor.values[0] = std::nan("");
    return tensor;
  };
  WriteTwin(1, 1, RoundingOf(kRounding), broken);
  WriteTwin(1, 2, RoundingOf(kRounding));
  EXPECT_EQ(Say(Ask()), "0 forward blocks.1.fc");
}

// Rows that nothing reads, as padding's, or an output that is thrown away.
class UnreadOutputs : public MeasuredVerdict {
 protected:
  static constexpr char kSaid[] = "far more than noise explains, first blocks.1.fc by 0.";
  // Of the outputs of two modules; nothing that follows differs by more than rounding.
  static Level Unread() {
    return [](std::uint64_t, const TensorKey& key) {
      const bool unread = key.name == "blocks.1.fc" || key.name == "blocks.2.fc";
      return unread && key.kind == Kind::kOutput ? 0.5 : 0.0;
    };
  }
  DiffReport DiffWithTwins(const Level& level, const Edit& edit = {}) {
    store_ = std::make_unique<FakeStore>();
    WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
    Write(Sum(RoundingOf(kRounding), level), edit);
    return Ask();
  }
};

TEST_F(UnreadOutputs, have_no_effect_and_it_is_said) {
  options_.steps = 1;
  const DiffReport report = DiffWithTwins(Unread());
  ExpectExplained(report);
  EXPECT_THAT(report.notes, Contains(HasSubstr(std::string("2 outputs differ ") + kSaid)));
  const DiffReport one = DiffWithTwins([](std::uint64_t step, const TensorKey& key) {
    return key.name == "blocks.1.fc" ? Unread()(step, key) : 0.0;
  });
  ExpectExplained(one);
  EXPECT_THAT(one.notes, Contains(HasSubstr(std::string("1 output differs ") + kSaid)));
}

TEST_F(UnreadOutputs, do_not_hide_a_bug_of_a_later_step) {
  const DiffReport report = DiffWithTwins(Sum(Unread(), BugAt("blocks.3.fc", 1e-2, /*from=*/2)));
  EXPECT_EQ(Say(report), "2 forward blocks.1.fc") << "there, something may have read it";
  EXPECT_THAT(report.notes, Not(Contains(HasSubstr(kSaid)))) << "it has a root";
}

TEST_F(UnreadOutputs, are_read_if_what_follows_differs_or_nothing_shows_that_it_does_not) {
  EXPECT_EQ(Say(DiffWithTwins(BugAt("blocks.1.fc", 0.5))), "0 forward blocks.1.fc");
  const auto nan = [](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
    if (key == Key("blocks.3.fc")) tensor.values[7] = std::nan("");
    return tensor;
  };
  EXPECT_EQ(Say(DiffWithTwins(Unread(), nan)), "0 forward blocks.1.fc");
  options_.gradients = false;
  EXPECT_EQ(Say(DiffWithTwins(Unread())), "0 forward blocks.1.fc") << "without gradients";
}

// In bfloat16 the gradient of a bias in front of a normalisation is noise.
TEST_F(MeasuredVerdict, A_gradient_that_is_noise_in_the_twins_is_no_root_and_is_named) {
  const auto noise = [](double size) {
    return Sum(RoundingOf(size), [](std::uint64_t, const TensorKey& key) {
      return key.kind == Kind::kWeightGrad && key.name.ends_with("bias") ? 1.0 : 0.0;
    });
  };
  WriteTwins([&](double ulps) { return noise(kRounding * ulps); });
  Write(Sum(noise(kRounding), BugAt("blocks.3.ln", 1e-2, /*from=*/2)));
  const DiffReport report = Ask();
  EXPECT_EQ(Say(report), "2 forward blocks.3.ln");
  EXPECT_THAT(report.notes, Contains(HasSubstr("noise, not an origin: blocks.0.fc.bias, "
                                               "blocks.1.fc.bias, blocks.2.fc.bias and 1 more")));
  store_ = std::make_unique<FakeStore>();
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  Write(noise(kRounding));
  EXPECT_EQ(Say(Ask()), "0 grad blocks.0.fc.bias") << "the twins' is not";
}

// As a rollout's: what the twins' batches show is noise, and no more than that.
TEST_F(MeasuredVerdict, A_batch_of_real_numbers_is_judged_by_the_noise_of_the_batches_before) {
  const auto batches = [](double size) {
    return Sum(RoundingOf(kRounding), [size](std::uint64_t step, const TensorKey& key) {
      return key.kind == Kind::kBatch && step > 0 ? size : 0.0;
    });
  };
  const auto say = [&](double of_b) {
    store_ = std::make_unique<FakeStore>();
    WriteTwins([&](double ulps) { return batches(1e-5 * ulps); });
    Write(batches(of_b));
    return Say(Ask());
  };
  EXPECT_EQ(say(1e-5), "none");
  EXPECT_EQ(say(1e-7), "none");
  EXPECT_EQ(say(1e-2), "1 batch ids");
}

TEST_F(MeasuredVerdict, A_twin_whose_loss_is_missing_or_not_finite_leaves_it_to_the_others) {
  const auto bug = [](std::uint64_t, const TensorKey& key) {
    return key.name == "loss" ? 1e-3 : 0.0;
  };
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  WriteTwin(1, 3, Sum(RoundingOf(kRounding), [](std::uint64_t, const TensorKey& key) {
              return key.name == "loss" ? std::nan("") : 0.0;
            }));
  options_.losses = false;
  WriteTwin(1, 4, RoundingOf(kRounding));
  options_.losses = true;
  Write(Sum(RoundingOf(kRounding), bug));
  const DiffReport report = Ask();
  EXPECT_EQ(Say(report), "0 loss loss");
  EXPECT_EQ(report.noise->runs.size(), 7u);
}

TEST_F(MeasuredVerdict, The_first_divergence_alone_is_judged_up_to_its_step) {
  options_.steps = 8;
  options_.elements = 512;
  WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
  Write(Sum(RoundingOf(kRounding), BugAt("blocks.1.fc", 1e-2, /*from=*/5)));
  const DiffReport report = Ask({.first_only = true});
  EXPECT_EQ(Say(report), "5 forward blocks.1.fc");
  EXPECT_THAT(report.root->because, Contains(HasSubstr("noise of the twins")));
}

TEST_F(MeasuredVerdict, A_bug_behind_many_steps_of_noise_is_found_where_the_distance_rises) {
  options_.steps = 44;
  options_.elements = 256;
  const auto noise = [](double ulps) { return RoundingOf(kRounding * ulps); };
  for (const int seed : {1, 2}) WriteTwin(1, seed, noise(1));
  Write(Sum(noise(1), BugAt("blocks.1.fc", 1e-2, /*from=*/41)));
  const DiffReport report = Ask();
  EXPECT_EQ(Say(report), "41 forward blocks.1.fc");
  EXPECT_THAT(report.root->because, Contains(HasSubstr("noise of the twins")));
}

TEST(NoiseThreshold, is_the_root_of_the_quantile_of_f) {
  // Roots of quantiles of F at 1e-4, by an incomplete beta function of our own.
  EXPECT_NEAR(NoiseThreshold(1, 2, false), 99.9925, 1e-3);
  EXPECT_NEAR(NoiseThreshold(16, 2, false), 2.1656, 1e-3);
  EXPECT_NEAR(NoiseThreshold(16, 2, true), 2.4513, 1e-3);
  EXPECT_GT(NoiseThreshold(16, 2, true), NoiseThreshold(16, 2, false));
  EXPECT_EQ(NoiseThreshold(0, 0, false), NoiseThreshold(1, 1, false));
}

}  // namespace
}  // namespace statcollect::query
