"""Every model has its paper's parameter count and shapes, and no example sees another."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino import models

Build = Callable[[], nn.Module]
CASES: dict[str, tuple[Build, tuple[int, ...], int, int]] = {
    "mnist_cnn": (models.mnist_cnn, (1, 28, 28), 10, 26_010),
    "mnist_scatter_cnn": (models.mnist_scatter_cnn, (81, 7, 7), 10, 33_066),
    "cifar_cnn": (models.cifar_cnn, (3, 32, 32), 10, 550_570),
    "cifar_small_cnn": (models.cifar_small_cnn, (3, 32, 32), 10, 167_642),
    "cifar_scatter_cnn": (models.cifar_scatter_cnn, (243, 8, 8), 10, 187_210),
    "lsr_cnn": (models.lsr_cnn, (1, 28, 28), 10, 25_386),
    "lsr_small_cnn": (models.lsr_small_cnn, (1, 28, 28), 10, 11_330),
    "lenet5": (models.lenet5, (1, 28, 28), 10, 61_706),
    "lenet_300_100": (models.lenet_300_100, (1, 28, 28), 10, 266_610),
    "resnet18": (models.resnet18, (3, 32, 32), 10, 11_173_962),
    "resnet18 of SI": (lambda: models.resnet18(norm=models.layer_norm), (3, 32, 32), 10, 11_164_362),
    "resnet18_v2": (models.resnet18_v2, (3, 64, 64), 1000, 11_687_720),
    "resnet50_v2": (models.resnet50_v2, (3, 64, 64), 1000, 25_549_352),
    "wrn_16_4": (models.wrn_16_4, (3, 32, 32), 10, 2_748_890),
    "vit_tiny": (models.vit_tiny, (3, 224, 224), 1000, 5_717_416),
    "simple_vgg": (models.simple_vgg, (3, 32, 32), 10, 550_570),
    "vgg16": (models.vgg16, (3, 32, 32), 10, 14_719_818),
    "fast_cifar_resnet": (models.fast_cifar_resnet, (3, 32, 32), 10, 6_568_640),
    "tf_tutorial_cnn": (models.tf_tutorial_cnn, (3, 24, 24), 10, 1_068_298),
    "tf_tutorial_cnn on whole images": (lambda: models.tf_tutorial_cnn(side=32), (3, 32, 32), 10, 1_756_426),
    "linear_mnist": (lambda: models.linear(3969), (81, 7, 7), 10, 39_700),
    "linear_cifar": (lambda: models.linear(15552), (243, 8, 8), 10, 155_530),
    "dense": (lambda: models.dense(784, 1024, 512, 64, 10), (1, 28, 28), 10, 1_362_122),
    "bilstm": (models.BiLSTMClassifier, (20, 100), 4, 34_564),
    "PAW CNN of CIFAR-10, standard": (lambda: models.paw_cnn(3, 32, (48, 96), 512), (3, 32, 32), 10, 1_820_330),
    "PAW CNN of CIFAR-10": (lambda: models.paw_cnn(3, 32, (16, 32, 48), 512), (3, 32, 32), 10, 246_554),
    "PAW CNN of SVHN, standard": (lambda: models.paw_cnn(1, 32, (48, 96), 512), (1, 32, 32), 10, 1_817_930),
    "PAW CNN of SVHN": (lambda: models.paw_cnn(1, 32, (16, 32), 512), (1, 32, 32), 10, 600_522),
    "PAW CNN of MNIST, standard": (lambda: models.paw_cnn(1, 28, (48, 96), 64), (1, 28, 28), 10, 197_130),
    "PAW CNN of MNIST": (lambda: models.paw_cnn(1, 28, (16, 32), 64), (1, 28, 28), 10, 56_970),
    "average_lenet5": (models.average_lenet5, (1, 28, 28), 10, 61_706),
    "rwt_cnn": (models.rwt_cnn, (1, 28, 28), 10, 122_442),
}


def check(model: nn.Module, inputs: Tensor, classes: int) -> None:
    """Scores of the right shape, a gradient for every parameter, and none from one example's scores to another's."""
    scores = model(inputs)
    assert scores.shape == (len(inputs), classes)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    changed = inputs.clone()
    changed[0] = changed[1]
    assert torch.allclose(model(changed)[1:], scores[1:], atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_counts_and_shapes(name: str) -> None:
    build, shape, classes, count = CASES[name]
    torch.manual_seed(0)
    model = build()
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    check(model, torch.randn(3, *shape), classes)


NORMED: dict[str, tuple[Callable[[models.Norm], nn.Module], tuple[int, ...], int]] = {
    # with one norm everywhere: how many layers have one
    "lenet5": (lambda norm: models.lenet5(norm=norm), (1, 28, 28), 4),
    "lenet_300_100": (lambda norm: models.lenet_300_100(norm=norm), (1, 28, 28), 2),
    "resnet18": (lambda norm: models.resnet18(norm=norm, width=4), (3, 32, 32), 20),
    "resnet18-mod": (lambda norm: models.resnet18(norm=norm, last_norm=models.no_norm, width=4), (3, 32, 32), 19),
    "BN-resnet18": (lambda norm: models.resnet18(norm=norm, score_norm=norm, width=4), (3, 32, 32), 21),
    "vgg16": (lambda norm: models.vgg16(norm=norm, width=4), (3, 32, 32), 13),
    "vgg16-mod": (lambda norm: models.vgg16(norm=norm, last_norm=models.no_norm, width=4), (3, 32, 32), 12),
    "BN-vgg16": (lambda norm: models.vgg16(norm=norm, score_norm=norm, width=4), (3, 32, 32), 14),
    "fast_cifar_resnet": (lambda norm: models.fast_cifar_resnet(norm=norm, width=4), (3, 32, 32), 8),
    "tf_tutorial_cnn": (lambda norm: models.tf_tutorial_cnn(norm=norm), (3, 24, 24), 4),
    "bilstm": (lambda norm: models.BiLSTMClassifier(8, 5, score_norm=norm), (6, 8), 1),
}


@pytest.mark.parametrize("name", NORMED)
def test_norms_stand_where_the_paper_has_them(name: str) -> None:
    build, shape, count = NORMED[name]
    torch.manual_seed(0)
    plain, layered, batched = build(models.no_norm), build(models.layer_norm), build(models.BatchNorm)
    assert sum(isinstance(layer, nn.GroupNorm) for layer in layered.modules()) == count
    assert sum(isinstance(layer, models.BatchNorm) for layer in batched.modules()) == count
    # No learnt scale or shift, no running statistics: weights of one fit the other.
    assert layered.load_state_dict(plain.state_dict())
    assert batched.load_state_dict(plain.state_dict())
    x = torch.randn(3, *shape)
    check(layered, x, layered(x).shape[1])
    scores, changed = batched(x), batched(torch.cat((x[1:2], x[1:])))
    assert not torch.allclose(scores[1:], changed[1:], atol=1e-4)
    assert torch.equal(batched.eval()(x), scores)


def test_the_last_norm_of_a_mod_network_is_that_of_its_last_convolution() -> None:
    mod = models.resnet18(norm=models.layer_norm, last_norm=models.no_norm, width=4)
    assert isinstance(mod.stages[-1].norm2, nn.Identity)
    assert isinstance(mod.stages[-1].norm1, nn.GroupNorm)
    vgg = list(models.vgg16(norm=models.layer_norm, last_norm=models.no_norm, width=4))
    assert [type(layer) for layer in vgg[-6:]] == [
        nn.Identity,
        nn.ReLU,
        nn.MaxPool2d,
        nn.Flatten,
        nn.Linear,
        nn.Identity,
    ]
    assert isinstance(vgg[-9], nn.GroupNorm)


def test_layer_norm_is_that_of_torch() -> None:
    x = torch.randn(3, 6, 5, 4)
    assert torch.allclose(models.layer_norm(6)(x), nn.LayerNorm([6, 5, 4], elementwise_affine=False)(x), atol=1e-6)
    vectors = torch.randn(3, 6)
    assert torch.allclose(models.layer_norm(6)(vectors), nn.LayerNorm(6, elementwise_affine=False)(vectors), atol=1e-6)


def test_batch_norm_is_that_of_torch_for_planes_and_vectors() -> None:
    planes, vectors = torch.randn(5, 6, 4, 4), torch.randn(5, 6)
    norm = models.BatchNorm(6)
    settings = {"affine": False, "track_running_stats": False}
    assert torch.equal(norm(planes), nn.BatchNorm2d(6, **settings)(planes))
    assert torch.equal(norm(vectors), nn.BatchNorm1d(6, **settings)(vectors))
    with pytest.raises(ValueError, match=r"expected \(B, 6, …\), not \(5, 7\)"):
        norm(torch.randn(5, 7))


@pytest.mark.parametrize(
    ("most", "channels", "groups"),
    [(32, 64, 32), (32, 8, 4), (32, 48, 24), (16, 16, 8), (32, 6, 3), (32, 3, 1), (4, 1, 1)],
)
def test_groups_of_a_norm_divide_the_channels(most: int, channels: int, groups: int) -> None:
    assert models.group_norm(most)(channels).num_groups == groups


@pytest.mark.parametrize(
    ("version_2", "version_1", "norms"),
    # Version 1 as torchvision counts it: 4,800 and 26,560 channels have batch norms, each a scale and a shift.
    [(models.resnet18_v2, 11_689_512, 4800), (models.resnet50_v2, 25_557_032, 26_560)],
)
def test_version_2_differs_from_version_1_in_its_norms_alone(
    version_2: Callable[[], nn.Module], version_1: int, norms: int
) -> None:
    model = version_2()
    own = sum(layer.num_channels for layer in model.modules() if isinstance(layer, nn.GroupNorm))
    assert sum(weight.numel() for weight in model.parameters()) - 2 * own == version_1 - 2 * norms


def test_ins_strides_late_and_public_weights_early() -> None:
    """INS's code shrinks the image in a group's last block, elsewhere it is the first."""
    torch.manual_seed(0)
    x, sides = torch.zeros(1, 3, 64, 64), {}
    for build in (models.resnet18_v2, models.resnet50_v2):
        for late in (False, True):
            model, found, hidden = build(width=2, late_strides=late), [], x
            for part in list(model)[:-2]:
                hidden = part(hidden)
                found.append(hidden.shape[2])
            sides[build.__name__, late] = found
    assert sides["resnet18_v2", False] == sides["resnet18_v2", True] == [16, 16, 8, 4, 2]
    assert sides["resnet50_v2", False] == [16, 16, 8, 4, 2]
    assert sides["resnet50_v2", True] == [16, 8, 4, 2, 2]
    shortcuts = [type(block.shortcut) for block in models.resnet18_v2(width=2, late_strides=True).group2]
    assert shortcuts == [nn.Conv2d, nn.MaxPool2d]


def test_the_usual_simple_vgg_is_the_cnn_of_earlier_work() -> None:
    torch.manual_seed(0)
    ours = models.simple_vgg("simpleVGG-32(2)-64(2)-128(2)-128")
    theirs = models.cifar_cnn()
    values = dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True))
    theirs.load_state_dict(values)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours(x), theirs(x))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_simple_vggs_have_the_layers_of_their_description(
    blocks: list[tuple[int, int]], units: int, channels: int
) -> None:
    text = "-".join([*(f"{width}({count})" for width, count in blocks), str(units)])
    model = models.simple_vgg(text, channels, 4, side=16)
    convolutions = [layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert convolutions == [width for width, count in blocks for _ in range(count)]
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in model.modules()) == len(blocks)
    assert [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)] == [units, 4]
    assert model(torch.randn(2, channels, 16, 16)).shape == (2, 4)


@pytest.mark.parametrize("text", ["", "128", "32-64-128", "32(2)-64", "32(0)-8", "(2)-8", "32(2)--8", "32(2)-8-", "x"])
def test_other_descriptions_are_refused(text: str) -> None:
    if text == "32(2)-64":
        assert models.simple_vgg(text) is not None
        return
    with pytest.raises(ValueError, match=r"describes no simpleVGG: write blocks as channels\(convolutions\)"):
        models.simple_vgg(text)


def test_too_many_blocks_for_an_image_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 4×4 cannot be halved 3 times"):
        models.simple_vgg("2(1)-2(1)-2(1)-4", side=4)


@pytest.mark.parametrize("wrong", [{"side": 30}, {"depth": 6}, {"heads": 5}])
def test_vits_that_do_not_divide_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="choose numbers that divide"):
        models.vit_tiny(**wrong)


def test_images_of_another_side_are_refused_by_a_vit() -> None:
    with pytest.raises(ValueError, match="takes images of 8×8, not 12×8"):
        models.vit_tiny(side=8, patch=4, width=12, depth=4)(torch.zeros(1, 3, 12, 8))


def test_sides_that_do_not_pool_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4, not 30"):
        models.tf_tutorial_cnn(side=30)


def test_models_on_tokens() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (3, 12))
    check(models.BiLSTMClassifier(16, 8, vocabulary=50), tokens, 4)
    check(models.TransformerClassifier(50, 20, width=16, heads=2), tokens, 4)


@pytest.mark.parametrize(("hidden", "units", "count"), [(256, 512, 496_978), (4, 16, 50_994)])
def test_lstms_of_paw(hidden: int, units: int, count: int) -> None:
    torch.manual_seed(0)
    model = models.paw_rnn(hidden, units)
    assert sum(weight.numel() for weight in model.parameters() if weight.requires_grad) == count
    tokens = torch.randint(0, 1000, (3, 6))
    scores = model(tokens)
    assert scores.shape == (3, 2)
    changed = torch.cat((tokens[1:2], tokens[1:]))
    assert torch.allclose(model(changed)[1:], scores[1:], atol=1e-6)
    assert not model[1].lstm.bias_hh_l0.any()


@pytest.mark.parametrize(
    ("build", "trained"),
    [
        (lambda: models.dense(784, 1024, 512, 64, 10), 33_482),
        (models.rwt_cnn, 103_114),
        (lambda: models.paw_rnn(256, 512), 132_610),
    ],
)
def test_random_weights_training_trains_the_last_two_dense_layers(
    build: Callable[[], nn.Sequential], trained: int
) -> None:
    torch.manual_seed(0)
    whole = build()
    torch.manual_seed(0)
    frozen = models.train_last(build())
    assert sum(weight.numel() for weight in frozen.parameters() if weight.requires_grad) == trained
    assert all(torch.equal(*both) for both in zip(whole.parameters(), frozen.parameters(), strict=True))
    with pytest.raises(ValueError, match="last 9"):
        models.train_last(build(), 9)


def test_dropout_and_groups_are_parameters() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (3, 12))
    model = models.TransformerClassifier(50, 12, width=16, heads=2, dropout=0.5)
    assert not torch.equal(model(tokens), model(tokens))
    assert models.resnet18(norm=models.group_norm(8)).stem[1].num_groups == 8


def test_activations_of_dense_networks() -> None:
    kinds = [type(layer) for layer in models.dense(4, 3, 2, activation=nn.Tanh)]
    assert kinds == [nn.Flatten, nn.Linear, nn.Tanh, nn.Linear]


def test_a_network_of_one_width_is_refused() -> None:
    with pytest.raises(ValueError, match="input and its output"):
        models.dense(784)


@pytest.mark.parametrize("name", ["cifar_cnn", "cifar_small_cnn", "cifar_scatter_cnn", "lsr_cnn"])
def test_pooling_before_tanh_is_the_papers_function(name: str) -> None:
    build, shape, _, _ = CASES[name]
    torch.manual_seed(0)
    model = build()
    layers = list(model.children())
    pools = [place for place, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
    assert pools
    for place in pools:
        assert isinstance(layers[place + 1], nn.Tanh)
        layers[place : place + 2] = reversed(layers[place : place + 2])
    inputs = 3 * torch.randn(2, *shape)
    assert torch.allclose(nn.Sequential(*layers)(inputs), model(inputs), atol=1e-6)
