"""Installs minimind; everything it says stands in settings.ini."""
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup

parser = ConfigParser(delimiters=["="])
parser.read("settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    author_email=cfg["author_email"],
    url=cfg["git_url"],
    license="Apache-2.0",
    keywords=cfg["keywords"],
    packages=[cfg["lib_path"]],
    package_data={cfg["lib_path"]: ["tokenizer.json"]},
    python_requires=">=" + cfg["min_python"],
    install_requires=cfg["requirements"].split(),
    extras_require={"dev": cfg["dev_requirements"].split()},
    entry_points={
        "console_scripts": cfg["console_scripts"].split("\n"),
        "nbdev": ["minimind=minimind._modidx:d"],
    },
    zip_safe=False,
)
