// A perceptron of two linear layers with a ReLU between them, its gradients written out by hand.
// Row-major matrices.
#ifndef MPI_CPP_PERCEPTRON_H_
#define MPI_CPP_PERCEPTRON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

struct Matrix {
  Matrix() = default;
  Matrix(std::size_t rows, std::size_t columns)
      : shape{std::int64_t(rows), std::int64_t(columns)}, values(rows * columns) {}
  std::size_t rows() const { return std::size_t(shape[0]); }
  std::size_t columns() const { return std::size_t(shape[1]); }
  float* row(std::size_t i) { return values.data() + i * columns(); }
  const float* row(std::size_t i) const { return values.data() + i * columns(); }

  std::int64_t shape[2] = {0, 0};
  std::vector<float> values;
};

// One linear layer: output = input * weight^T + bias.
struct Linear {
  Linear(std::size_t inputs, std::size_t outputs, std::uint64_t seed);

  Matrix Forward(const Matrix& input) const;
  // Given the loss's gradient by the output: sets the gradients by weight and bias, returns the one
  // by the input.
  Matrix Backward(const Matrix& input, const Matrix& grad_output);

  Matrix weight, bias;  // [outputs, inputs], [1, outputs]
  Matrix weight_grad, bias_grad;
  Matrix weight_momentum, bias_momentum;
};

// max(x, 0) * scale.
Matrix Relu(const Matrix& input, float scale);
// Gradient by the input of Relu, in place.
void ReluBackward(const Matrix& input, float scale, Matrix* grad);

// Mean squared error; *grad becomes its gradient by the prediction.
float MeanSquaredError(const Matrix& prediction, const Matrix& target, Matrix* grad);

// Stochastic gradient descent with momentum 0.9.
void Update(Linear* layer, float learning_rate);

// Inputs and targets of one batch, the same for the same (seed, batch): the targets are a fixed
// random network's.
struct Batch {
  Matrix inputs, targets;
};
Batch MakeBatch(std::uint64_t seed, std::uint64_t batch, std::size_t samples, std::size_t inputs,
                std::size_t outputs);

#endif  // MPI_CPP_PERCEPTRON_H_
