"""ESPnet's data sets, which say in one line which utterance they cannot load."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from espnet2.train.dataset import ESPnetDataset

from espnet_distopt.errors import InputError, in_words


class ToldDataset(ESPnetDataset):
    """ESPnet's data set, which names an utterance that cannot be trained on."""

    def __getitems__(self, uids: Sequence[str | int]) -> list[Any]:
        """Return the utterances of a batch, each as `__getitem__` does.

        Raises:
            InputError: One of them cannot be read, or they cannot be padded to one
                array: they have another number of channels or of features.
        """
        batch = [self[uid] for uid in uids]
        for name in batch[0][1]:
            first, *rest = ((uid, each[name].shape) for uid, each in batch)
            for uid, shape in rest:
                if shape[1:] != first[1][1:]:
                    path, _ = self.debug_info[name]
                    raise InputError(
                        f"utterance '{uid}' of {path} is an array of shape {shape}, "
                        f"and '{first[0]}' of its batch one of {first[1]}: all need "
                        "equally many channels, or features"
                    )
        return batch

    def __getitem__(self, uid: str | int) -> Any:
        """Return the utterance's name and its arrays by name.

        Raises:
            InputError: One of the files lacks it, or is damaged.
        """
        try:
            return super().__getitem__(uid)
        except InputError:
            raise
        except Exception as error:
            for name, loader in self.loader_dict.items():
                path, _ = self.debug_info[name]
                try:
                    loader[uid]
                except KeyError:
                    raise InputError(
                        f"utterance '{uid}' is in a file of shapes, and not in {path}: "
                        "make the shapes of these data (stage 10 of a recipe)"
                    ) from error
                except Exception as why:
                    raise InputError(
                        f"utterance '{uid}' of {path} cannot be read ({in_words(why)})"
                        ": its file may be missing, or cut off"
                    ) from error
            raise  # It was read, and could not be preprocessed.


def tell_what_is_unreadable(dataset: Any) -> None:
    """Turn a data set of ESPnet's into a `ToldDataset`; leave others as they are."""
    if type(dataset) is ESPnetDataset:
        dataset.__class__ = ToldDataset


@contextmanager
def without_workers_traceback() -> Iterator[None]:
    """Let an InputError from a process that loads data have its own line alone."""
    try:
        yield
    except InputError as error:
        text = str(error)
        if not text.startswith("Caught InputError in DataLoader worker"):
            raise
        raise InputError(text.strip().rpartition("InputError: ")[2]) from error
